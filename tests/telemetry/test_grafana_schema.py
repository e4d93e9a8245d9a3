"""Every dashboard has the types that Grafana itself publishes: `@grafana/schema`, checked by TypeScript. Needs npm."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

BOARDS = sorted((Path(__file__).resolve().parents[2] / "grafana").glob("*.json"))
PACKAGES = {"@grafana/schema": "13.2.3", "typescript": "7.0.2"}
CONFIG = {
    "compilerOptions": {
        "strict": True, "noEmit": True, "module": "nodenext", "moduleResolution": "nodenext", "skipLibCheck": True,
        "types": [],
    },
    "files": ["boards.ts"],
}  # fmt: skip
TYPES = """import type { Dashboard } from "@grafana/schema";
type Plain<T> = T extends string ? `${T}`
  : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""
"""`Plain`: the same type with the values of its enums in place of their names, as JSON has them."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A TypeScript project with the schema."""
    npm = shutil.which("npm")
    assert npm, "apt-get install npm"
    place = tmp_path_factory.mktemp("schema")
    (place / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
    (place / "tsconfig.json").write_text(json.dumps(CONFIG))
    argv = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
    done = subprocess.run(argv, cwd=place, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return place


def errors(project, documents):
    """Findings of TypeScript in these dashboards."""
    lines = [f"export const board{at}: Plain<Dashboard> = {text};" for at, text in enumerate(documents)]
    (project / "boards.ts").write_text(TYPES + "\n".join(lines))
    argv = [project / "node_modules" / ".bin" / "tsc", "-p", "."]
    return subprocess.run(
        argv, cwd=project, capture_output=True, text=True, timeout=120, check=False
    ).stdout.splitlines()


def test_dashboards_have_the_types_of_grafana(project):
    assert len(BOARDS) == 4
    assert errors(project, [path.read_text() for path in BOARDS]) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('"mode": "absolute"', '"mode": "relative"'),
        ('"unit": "short"', '"unit": 7'),
        ('"refresh":', '"renew":'),
    ],
)
def test_a_wrong_type_is_found(project, right, wrong):
    text = next(path.read_text() for path in BOARDS if path.stem == "sparkfleet-fleet")
    assert right in text
    assert any("error TS" in line for line in errors(project, [text.replace(right, wrong)]))

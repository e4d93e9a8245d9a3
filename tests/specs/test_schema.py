"""The JSON Schemas are current, are schemas, and agree with the files that ship."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sparkfleet.specs.document import read
from sparkfleet.specs.schema import DIRECTORY, main, schemas, stale

ROOT = Path(__file__).parents[2]
EXAMPLES = Path(__file__).parents[0] / "examples"
FILES = {
    "inventory.schema.json": [ROOT / "inventory.yaml", *EXAMPLES.glob("inventory-*.yaml")],
    "deployment.schema.json": [*(ROOT / "deployments").glob("*.yaml"), *EXAMPLES.glob("deployment-*.yaml")],
}


def described(schema: Any, where: str = "") -> list[str]:
    """Fields without a description."""
    found = []
    for name, field in schema.get("properties", {}).items():
        if "description" not in field:
            found.append(f"{where}.{name}")
    for name, definition in schema.get("$defs", {}).items():
        found += described(definition, name)
    return found


def test_they_are_current() -> None:
    assert stale(DIRECTORY) == (), "Run: python -m sparkfleet.specs.schema"


@pytest.mark.parametrize("name", FILES)
def test_they_are_schemas_with_descriptions(name: str) -> None:
    schema = json.loads(schemas()[name])
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert described(schema) == []


@pytest.mark.parametrize(
    ("name", "path"), [(name, path) for name, paths in FILES.items() for path in paths], ids=str
)
def test_files_are_valid(name: str, path: Path) -> None:
    schema = json.loads((DIRECTORY / name).read_text())
    Draft202012Validator(schema).validate(json.loads(json.dumps(read(path.read_text()).value)))


@pytest.mark.parametrize(
    "text",
    [
        "name: x",
        "name: x\nmodel: a/b\nvariants: [{model: a/b}]",
        "name: x\nmodel: a/b\ncontxt: 5",
        "name: x\nmodel: a/b\nspeculation: mpt",
        "name: x\nmodel: a/b\nenv: {A B: x}",
        "name: X\nmodel: a/b",
    ],
)
def test_wrong_files_are_not(text: str) -> None:
    schema = json.loads(schemas()["deployment.schema.json"])
    assert not Draft202012Validator(schema).is_valid(read(text).value)


@pytest.mark.parametrize(
    "path", [ROOT / "inventory.yaml", *(ROOT / "deployments").glob("*.yaml")], ids=lambda p: p.name
)
def test_shipped_files_tell_editors_their_schema(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    start, _, target = first.partition("=")
    assert start == "# yaml-language-server: $schema"
    assert (path.parent / target).resolve().parent == DIRECTORY.resolve()
    assert (path.parent / target).is_file()


def test_check_and_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("is not current. Run: python -m sparkfleet.specs.schema") == 2
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (tmp_path / "inventory.schema.json").write_text("{}")
    assert stale(tmp_path) == ("inventory.schema.json",)

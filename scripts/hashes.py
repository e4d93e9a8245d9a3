"""Writes sparkfleet/install/hashes.txt: the SHA-256 of every wheel that `up` installs on a node.

pip resolves sparkfleet's requirements at the versions of constraints.txt for each Python and processor that a node may
have, and reports the wheels that it would install; nothing is installed. The index is pip's own. Its files must be PyPI's:
a mirror gives the same bytes, an index that builds its own wheels does not.

    python scripts/hashes.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "sparkfleet" / "install" / "hashes.txt"
PYTHONS = ("3.11", "3.12", "3.13")
PROCESSORS = ("aarch64", "x86_64")
GLIBC = 35
"""Minor version of the oldest glibc of a node: DGX OS is Ubuntu 24.04 with 2.39, and Debian 12 has 2.36."""
HEAD = (
    "# The wheels of what `up` installs on nodes, by the SHA-256 that PyPI has of them; for aarch64 and x86_64, Python\n"
    "# 3.11 to 3.13. Written by scripts/hashes.py.\n"
)

Wheels = dict[str, set[str]]


def main() -> None:
    """Write the file."""
    found: Wheels = {}
    for processor in PROCESSORS:
        for python in PYTHONS:
            print(f"resolving for Python {python} on {processor}", flush=True)
            for pin, digest in _wheels(python, processor):
                found.setdefault(pin, set()).add(digest)
    lines = (
        " ".join((pin, *(f"--hash=sha256:{one}" for one in sorted(found[pin])))) for pin in sorted(found)
    )
    TARGET.write_text(HEAD + "\n".join(lines) + "\n")
    print(f"wrote {TARGET.relative_to(ROOT)}: {len(found)} packages, {sum(map(len, found.values()))} wheels")


def _wheels(python: str, processor: str) -> Iterator[tuple[str, str]]:
    """`name==version` and the SHA-256 of each wheel."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"),
                *("--target", directory, "--report", str(report), "--only-binary=:all:"),
                *("--constraint", str(ROOT / "constraints.txt"), "--python-version", python),
                *_tags(python, processor),
                *_requirements(),
            ],
            check=True,
        )
        for one in json.loads(report.read_text())["install"]:
            about, archive = one["metadata"], one["download_info"]["archive_info"]
            yield (
                f"{about['name'].lower().replace('_', '-')}=={about['version']}",
                archive["hashes"]["sha256"],
            )


def _tags(python: str, processor: str) -> Iterator[str]:
    platforms = [f"manylinux_2_{minor}_{processor}" for minor in range(GLIBC, 4, -1)]
    old = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
    for platform in (*platforms, *(f"{name}_{processor}" for name in old)):
        yield from ("--platform", platform)
    yield from ("--implementation", "cp")
    for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
        yield from ("--abi", abi)


def _requirements() -> list[str]:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["head"]]


if __name__ == "__main__":
    main()

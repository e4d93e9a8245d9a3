"""Writes the SHA-256 of every wheel that `up` installs on a node, and of those that the demo, tests and checks need here.

    sparkfleet/install/hashes.txt    a node's
    scripts/hashes-local.txt         of the extra "local", the embedded engine, beside those
    scripts/hashes-dev.txt           of the extra "dev", beside both

pip resolves sparkfleet's requirements at the versions of constraints.txt for each Python and processor, and reports the
wheels that it would install; nothing is installed. The index is pip's own. Its files must be PyPI's: a mirror gives the
same bytes, an index that builds its own wheels does not. The embedded engine is not resolved, because its requirements
name builds for CUDA: its packages are those that it has here, after `scripts/setup`, without torch, whose build for CPUs is
on another index.

    python scripts/hashes.py [node|local|dev]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from sparkfleet.install.release import pins_of

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
PROCESSORS = ("aarch64", "x86_64")
GLIBC = 35
"""Minor version of the oldest glibc of a node: DGX OS is Ubuntu 24.04 with 2.39, and Debian 12 has 2.36."""
EXTRAS = {"node": ("head",), "dev": ("head", "dev")}
"""The extras of each file that is resolved."""
FILES = {
    "node": ROOT / "sparkfleet" / "install" / "hashes.txt",
    "local": ROOT / "scripts" / "hashes-local.txt",
    "dev": ROOT / "scripts" / "hashes-dev.txt",
}
"""Each file has what those before it lack."""
HEADS = {
    "node": "# The wheels of what `up` installs on nodes",
    "local": "# The wheels of the embedded engine beside those of a node",
    "dev": "# The wheels of what tests and checks need beside those of a node and of the embedded engine",
}
END = (
    ", by the SHA-256 that PyPI has of them; for aarch64 and x86_64, Python\n"
    "# 3.11 to 3.13. Written by scripts/hashes.py.\n"
)

Kind = tuple[str, str]
"""A version of Python and a processor."""
Wheels = dict[str, dict[Kind, str]]
"""The SHA-256 of the wheel of each `name==version`, by kind."""


def main(names: list[str]) -> None:
    """Write the files of these names; without any, all."""
    for name in names or FILES:
        wheels = _resolved(name)
        own = {pin: wheels[pin] for pin in wheels.keys() - _before(name)}
        FILES[name].write_text(HEADS[name] + END + "\n".join(_lines(own)) + "\n")
        print(f"wrote {FILES[name].relative_to(ROOT)}: {len(own)} packages")


def _resolved(name: str) -> Wheels:
    found: Wheels = {}
    for processor in PROCESSORS:
        for python in PYTHONS:
            print(f"resolving {name} for Python {python} on {processor}", flush=True)
            wheels = (
                _engine(python, processor) if name == "local" else _wheels(EXTRAS[name], python, processor)
            )
            for pin, digest in wheels:
                found.setdefault(pin, {})[python, processor] = digest
    return found


def _before(name: str) -> set[str]:
    """The pins of the files before this one."""
    earlier = takewhile(lambda one: one != name, FILES)
    lines = (line for one in earlier for line in FILES[one].read_text().splitlines())
    return {line.split()[0] for line in lines if not line.startswith("#")}


def _engine(python: str, processor: str) -> Iterator[tuple[str, str]]:
    """As `_wheels`, for the embedded engine's packages that have a wheel for this Python and processor."""
    tested = {line.lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()}
    pins = tested & {*pins_of(frozenset({"local"}))} - _before("local")
    while True:
        try:
            yield from _reported(["--no-deps", *sorted(pins)], python, processor)
            return
        except subprocess.CalledProcessError as error:
            absent = re.search(r"No matching distribution found for (\S+)", error.stderr)
            if not absent:
                raise
            print(f"no wheel of {absent[1]} for Python {python} on {processor}", flush=True)
            pins.remove(absent[1])


def _lines(wheels: Wheels) -> Iterator[str]:
    for pin in sorted(wheels):
        hashes = sorted(set(wheels[pin].values()))
        yield " ".join((pin, *_marker([*wheels[pin]]), *(f"--hash=sha256:{one}" for one in hashes)))


def _marker(kinds: list[Kind]) -> Iterator[str]:
    """For a package that not every kind needs: most of those would not find a wheel of it either."""
    if len(kinds) < len(PYTHONS) * len(PROCESSORS):
        words = (f"python_version == '{python}' and platform_machine == '{cpu}'" for python, cpu in kinds)
        yield "; " + " or ".join(words)


def _wheels(extras: tuple[str, ...], python: str, processor: str) -> Iterator[tuple[str, str]]:
    """`name==version` and the SHA-256 of each wheel."""
    yield from _reported(
        ["--constraint", str(ROOT / "constraints.txt"), *_requirements(extras)], python, processor
    )


def _reported(requirements: list[str], python: str, processor: str) -> Iterator[tuple[str, str]]:
    """`name==version` and the SHA-256 of each wheel that pip would install for these requirements.

    Raises:
        CalledProcessError: pip's words are its `stderr`.
    """
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"),
                *("--target", directory, "--report", str(report), "--only-binary=:all:"),
                *("--python-version", python, *_tags(python, processor), *requirements),
            ],
            check=True,
            stderr=subprocess.PIPE,
            text=True,
        )
        for one in json.loads(report.read_text())["install"]:
            about, archive = one["metadata"], one["download_info"]["archive_info"]
            name = about["name"].lower().replace("_", "-")
            yield f"{name}=={about['version']}", archive["hashes"]["sha256"]


def _tags(python: str, processor: str) -> Iterator[str]:
    platforms = [f"manylinux_2_{minor}_{processor}" for minor in range(GLIBC, 4, -1)]
    old = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
    for platform in (*platforms, *(f"{name}_{processor}" for name in old)):
        yield from ("--platform", platform)
    yield from ("--implementation", "cp")
    for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
        yield from ("--abi", abi)


def _requirements(extras: tuple[str, ...]) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return [one for one in wanted if not one.startswith("sparkfleet")]


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, words=True)
    try:
        main(sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr)

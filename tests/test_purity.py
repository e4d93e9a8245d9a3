"""A module that calls itself "Pure" decides from values alone: it reads no file, no clock, no environment and no network."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
EFFECTS = frozenset(
    [
        "aiohttp",
        "asyncio",
        "ctypes",
        "fcntl",
        "glob",
        "http",
        "mmap",
        "os",
        "paramiko",
        "pwd",
        "random",
        "ray",
        "requests",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib.request",
    ]
)
"""Modules of Python and of others that act, or read what is no value."""
ON_DISK = frozenset(
    [
        "absolute",
        "chmod",
        "cwd",
        "exists",
        "expanduser",
        "glob",
        "home",
        "is_dir",
        "is_file",
        "is_symlink",
        "iterdir",
        "mkdir",
        "now",
        "open",
        "read_bytes",
        "read_text",
        "readlink",
        "resolve",
        "rglob",
        "stat",
        "symlink_to",
        "today",
        "touch",
        "unlink",
        "utcnow",
        "write_bytes",
        "write_text",
    ]
)
"""Methods of paths and clocks that do."""
BUILT_IN = frozenset(("input", "open", "print"))
COMPUTED = {
    ("sparkfleet.gateway.access.keys", "engine_token"),
    ("sparkfleet.gateway.access.keys", "metrics_token"),
    ("sparkfleet.fabric.rails_helper", "firewall_rules"),
    ("sparkfleet.fabric.rails_helper", "rendered"),
}
"""Functions of modules that act, which themselves compute a value from their arguments."""


def outermost(module: str) -> str:
    return "urllib.request" if module.startswith("urllib.request") else module.partition(".")[0]


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of every import; name is "" for a whole module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def acts(module: str) -> bool:
    """True if a module of ours imports one that acts."""
    path = ROOT / (module.replace(".", "/") + ".py")
    return path.exists() and any(
        outermost(name) in EFFECTS for name, _ in imported(ast.parse(path.read_text()))
    )


def effects(tree: ast.Module) -> Iterator[str]:
    """Causes that make a module impure, in words."""
    for module, name in imported(tree):
        if outermost(module) in EFFECTS:
            yield f"imports {module}"
        elif (
            module.startswith("sparkfleet")
            and name.islower()
            and (module, name) not in COMPUTED
            and acts(module)
        ):
            yield f"imports {name} of {module}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in BUILT_IN:
            yield f"calls {called.id}"
        if (
            isinstance(called, ast.Attribute)
            and called.attr in ON_DISK
            and "files(" not in ast.unparse(called)
        ):
            yield f"calls {ast.unparse(called)}"  # but for data files of the package, which do not change


def pure_modules() -> dict[str, ast.Module]:
    found = {path: ast.parse(path.read_text()) for path in (ROOT / "sparkfleet").rglob("*.py")}
    return {
        str(path.relative_to(ROOT)): tree
        for path, tree in found.items()
        if re.search(r"\bPure\b", ast.get_docstring(tree) or "")
    }


def test_modules_that_call_themselves_pure_are() -> None:
    modules = pure_modules()
    assert len(modules) > 50
    found = {name: list(effects(tree)) for name, tree in modules.items()}
    assert {name: one for name, one in found.items() if one} == {}


def test_no_module_is_pure_with_an_exception() -> None:
    excepted = [
        name
        for name, tree in pure_modules().items()
        if re.search(r"\bPure,? (but|except)", ast.get_docstring(tree) or "")
    ]
    assert excepted == []


def test_what_it_looks_for_is_found() -> None:
    source = '"""Pure."""\nimport os\nfrom sparkfleet.remote.netdev import netdev_of\nPath("x").is_file()\nopen("y")\n'
    assert list(effects(ast.parse(source))) == [
        "imports os",
        "imports netdev_of of sparkfleet.remote.netdev",
        "calls Path('x').is_file",
        "calls open",
    ]

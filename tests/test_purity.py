"""A module that calls itself "Pure", as each of a package that does, decides from values alone: it reads no file, no clock,
no environment and no network."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
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


@cache
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


PURE_PACKAGE = re.compile(r"\bPure[.:]")
"""Of a package itself, and not at the end of a line about one of its modules."""


@cache
def pure_modules(root: Path) -> dict[str, ast.Module]:
    found = {path: ast.parse(path.read_text()) for path in root.rglob("*.py")}
    declared = {path for path, tree in found.items() if re.search(r"\bPure\b", ast.get_docstring(tree) or "")}
    packages = {
        path.parent
        for path in declared
        if path.name == "__init__.py" and PURE_PACKAGE.search(ast.get_docstring(found[path]) or "")
    }
    return {
        str(path.relative_to(root)): tree
        for path, tree in found.items()
        if path in declared or packages & set(path.parents)
    }


def test_modules_that_call_themselves_pure_are() -> None:
    modules = pure_modules(ROOT / "sparkfleet")
    assert len(modules) > 150
    found = {name: list(effects(tree)) for name, tree in modules.items()}
    assert {name: one for name, one in found.items() if one} == {}


def test_a_pure_package_has_pure_modules_only(tmp_path: Path) -> None:
    inner = tmp_path / "policy" / "rules"
    inner.mkdir(parents=True)
    (tmp_path / "policy" / "__init__.py").write_text('"""Decides. Pure."""\n')
    (inner / "rollout.py").write_text('"""Starts groups."""\nimport time\n')
    (tmp_path / "other.py").write_text('"""Acts."""\nimport time\n')
    found = {name: list(effects(tree)) for name, tree in pure_modules(tmp_path).items()}
    assert found == {"policy/__init__.py": [], "policy/rules/rollout.py": ["imports time"]}


def test_no_module_is_pure_with_an_exception() -> None:
    excepted = [
        name
        for name, tree in pure_modules(ROOT / "sparkfleet").items()
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

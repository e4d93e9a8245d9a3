"""Programs of ours on nodes import nothing from the directory in which they are started."""

import ast
from pathlib import Path

import pytest

import sparkfleet

PACKAGE = Path(sparkfleet.__file__).parent
HERE_ONLY = ("lab", "tiny_models", "accuracy")
"""Parts that start programs on the developer's machine only."""
SAFE = {"-I", "-P"}
BY_A_SUPERVISOR = {"engines/vllm.py"}
"""Engines, in environments of their owners."""


def word(node):
    """A literal word of a command; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def commands(text):
    """Every list or tuple in a module that has more than one word, with its line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Tuple | ast.List) and len(node.elts) > 1:
            yield node.lineno, [word(one) for one in node.elts]


def exposed(text):
    """Lines that start Python with the current directory among the places that it imports from."""
    return [
        line
        for line, words in commands(text)
        if (
            words[0] == "python3"
            and words[1] is not None
            and words[1].startswith("-")
            and words[1] not in SAFE
        )
        or ("-m" in words[1:] and words[0] is None and SAFE.isdisjoint(words[: words.index("-m")]))
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('x = (python, "-m", "json")', [1]),
        ('x = ["python3", "-c", code]', [1]),
        ('x = (python, "-P", "-m", "json")\ny = ("python3", "-I", "-c", code)', []),
        ('x = ("python3", "rsync")', []),
    ],
)
def test_the_search_finds_them(text, lines):
    assert exposed(text) == lines


def test_every_program_is_started_without_the_current_directory():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in HERE_ONLY
        and path.relative_to(PACKAGE).as_posix() not in BY_A_SUPERVISOR
        for line in exposed(path.read_text())
    ]
    assert found == []

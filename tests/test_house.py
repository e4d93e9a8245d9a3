"""The checks of `scripts/house.py` find what they are for, and raise no false alarm."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "house.py"


@pytest.fixture(scope="module")
def house() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("house", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(root: Path, part: str, text: str) -> Path:
    """A package with one module in one part of it."""
    package = root / "sparkfleet"
    (package / part).mkdir(parents=True)
    (package / part / "module.py").write_text(text, encoding="utf-8")
    return package


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ('raise ValueError(f"{node} says nothing.")', "1: 'says'"),
        ('"""A log.\n\nIt is Told of later.\n"""\n', "3: 'Told'"),
        ('do = "The weights " "could not be asked: nowhere to be found."', "1: 'nowhere'"),
        ('help = "A directory stands for all files in it."', "1: 'stands for'"),
        ('help = "Take what is remembered."', "1: 'what is remembered'"),
    ],
)
def test_a_riddle_is_found_with_its_line(house: ModuleType, tmp_path: Path, text: str, finding: str) -> None:
    found = list(house.findings(written(tmp_path, "cli", text)))
    assert len(found) == 1
    assert found[0].startswith(f"sparkfleet/cli/module.py:{finding}")


@pytest.mark.parametrize(
    "text",
    [
        'key = {"said": 1}',  # a name, not prose
        'told = "The node reports 5 GiB."',
        'help = "Pass `engine says hello` as it is."',
        'argv = "restore --begin-anew FLEET"',
    ],
)
def test_names_and_code_are_no_riddles(house: ModuleType, tmp_path: Path, text: str) -> None:
    assert list(house.findings(written(tmp_path, "cli", text))) == []


def test_a_comment_has_plain_words(house: ModuleType, tmp_path: Path) -> None:
    text = 'x = 1\ny = "Stored."  # the log says so, `says` does not\n'
    (found,) = house.findings(written(tmp_path, "cli", text))
    assert found.startswith("sparkfleet/cli/module.py:2: 'says' in a message, a docstring or a comment")
    (beside,) = house.unclear_beside(tmp_path)
    assert beside.endswith(found.partition("sparkfleet/")[2])


def test_a_document_has_plain_words(house: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    text = "# Logs\n\n`grep says` and [this](what-it-says.md)\n\n    it says\n\nThe log says so.\n"
    for name in ("logs.md", "decisions.md"):
        (tmp_path / "docs" / name).write_text(text, encoding="utf-8")
    assert list(house.unclear_documents(tmp_path)) == [
        "docs/logs.md:7: 'says' in a document: use a plainer word"
    ]


def test_values_have_docstrings_too(house: ModuleType, tmp_path: Path) -> None:
    text = 'WAIT_S = 5.0\n"""How long it waits."""\n'
    (found,) = house.findings(written(tmp_path, "cli", text))
    assert found.startswith("sparkfleet/cli/module.py:2: a docstring opens with 'How'")


def test_a_function_is_described_without_pointing_at_another_line(house: ModuleType, tmp_path: Path) -> None:
    text = 'def key():\n    """Its key."""\n\n\nLIMIT = 1\n"""Of one node."""\n'
    (found,) = house.findings(written(tmp_path, "cli", text))
    assert found.startswith("sparkfleet/cli/module.py:1: a docstring opens with 'Its'")


def test_the_package_has_no_test_doubles(house: ModuleType, tmp_path: Path) -> None:
    text = 'class FakeChannel:\n    """A node in memory."""\n'
    (found,) = house.findings(written(tmp_path, "remote", text))
    assert found.startswith("sparkfleet/remote/module.py:1: class FakeChannel is a test double")
    fake = written(tmp_path / "users", "engines/fake", text.replace("Channel", "Engine"))
    assert list(house.findings(fake)) == []


def test_docstrings_and_class_names(house: ModuleType, tmp_path: Path) -> None:
    package = written(tmp_path, "cli", '"""What it is."""\n\n\nclass Twice:\n    """One."""\n')
    (package / "cli" / "other.py").write_text('class Twice:\n    """Another."""\n', encoding="utf-8")
    first, second = house.findings(package)
    assert "opens with 'What'" in first
    assert "class Twice exists 2 times" in second


def test_an_alias_has_no_name_of_a_class(house: ModuleType, tmp_path: Path) -> None:
    package = written(
        tmp_path, "cli", '"""Values."""\n\nOnce = int | str\nTwice = dict[str, int]\nTWICE = [0] * 2\n'
    )
    (package / "cli" / "other.py").write_text('class Twice:\n    """One."""\n', encoding="utf-8")
    (found,) = house.findings(package)
    assert found.startswith("sparkfleet/cli/module.py:4: the alias Twice has the name of the class in")


def test_a_package_has_no_more_modules_than_can_be_looked_over(house: ModuleType, tmp_path: Path) -> None:
    package = written(tmp_path, "cli", '"""Reads arguments."""\n')
    (package / "cli" / "planning").mkdir()
    for directory in (package / "cli", package / "cli" / "planning"):
        for name in ("__init__", *(f"verb{number}" for number in range(1, house.MOST_MODULES))):
            (directory / f"{name}.py").write_text("")
    assert list(house.findings(package)) == []
    (package / "cli" / "another.py").write_text("")
    (finding,) = house.findings(package)
    assert finding.startswith(f"sparkfleet/cli: {house.MOST_MODULES + 1} modules side by side")


def test_docstrings_of_tests_open_with_a_verb_or_a_noun(house: ModuleType, tmp_path: Path) -> None:
    package = written(
        tmp_path, "cli", 'def test_it() -> None:\n    """Whether it works."""\n    told = "it says"\n'
    )
    (finding,) = house.findings_beside(package)
    assert finding.startswith("sparkfleet/cli/module.py:2: a docstring opens with 'Whether'")


def test_a_message_quotes_as_the_others_do(house: ModuleType, tmp_path: Path) -> None:
    text = 'raise ValueError(f"Engine {name!r} cannot be launched.")'
    (found,) = house.findings(written(tmp_path, "engines", text))
    assert found.startswith("sparkfleet/engines/module.py:1: {name!r} in a message")


@pytest.mark.parametrize(
    "text",
    ['x = f"The store failed: {error!r}"', 'x = f"FrozenDict({items!r})"', 'x = "Use {name!r} for it."'],
)
def test_exceptions_and_representations_may_be_pythons(house: ModuleType, tmp_path: Path, text: str) -> None:
    assert list(house.findings(written(tmp_path, "cli", text))) == []

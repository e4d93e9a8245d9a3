import sys

import pytest
import typer

from sparkfleet.cli.confirm import confirm
from sparkfleet.errors import SparkfleetError


class Terminal:
    """Somebody who answers."""

    def __init__(self, monkeypatch, *answers):
        self.asked = []
        self._answers = iter(answers)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(typer, "confirm", self._confirm)

    def _confirm(self, question, *, err):
        assert err  # standard output may be JSON
        self.asked.append(question)
        return next(self._answers)


def test_a_person_is_asked(monkeypatch):
    person = Terminal(monkeypatch, True, False)
    confirm("Apply?")
    with pytest.raises(SparkfleetError, match="Nothing was changed: the answer was no"):
        confirm("Delete m?")
    assert person.asked == ["Apply?", "Delete m?"]


def test_yes_asks_nobody(monkeypatch):
    person = Terminal(monkeypatch)
    confirm("Apply?", yes=True)
    assert person.asked == []


def test_nobody_is_there(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(SparkfleetError, match="this needs a confirmation") as refused:
        confirm("Apply?")
    assert "--yes" in refused.value.do
    assert capsys.readouterr().err == "Apply?\n"
    with pytest.raises(SparkfleetError) as refused:
        confirm("Pin it?", alone="Look at it.")
    assert refused.value.do == "Look at it."

"""The line that a terminal shows while a verb is loaded: first on it, gone before the answer, and in no pipe."""

import io
import os
import pty
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from sparkfleet.cli import loading as module
from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.escapes import RawOutput, SafeConsole
from sparkfleet.cli.output import print_json
from sparkfleet.errors import SparkfleetError

SPARKFLEET = str(Path(sys.executable).parent / "sparkfleet")


def read(file):
    try:
        return os.read(file, 1 << 16)
    except OSError:  # its last program has ended
        return b""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """shown(verb, …, out="terminal"): what a terminal got, in the order of writing, and what a pipe got."""
    here = tmp_path_factory.mktemp("fleet")
    (here / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    (here / "tiny.yaml").write_text("name: tiny\nmodel: builtin:tiny\n")

    @cache
    def shown(*argv, out="terminal", term="xterm"):
        env = {**os.environ, "SPARKFLEET_HOME": str(here / "state"), "TERM": term, "COLUMNS": "100"}
        reads, writes = pty.openpty()
        with subprocess.Popen(
            [SPARKFLEET, *argv], cwd=here, env=env, stdin=subprocess.DEVNULL,
            stdout=writes if out == "terminal" else subprocess.PIPE, stderr=writes, text=True,
        ) as running:  # fmt: skip
            os.close(writes)
            terminal = b""  # a part may end within a character
            while part := read(reads):
                terminal += part
            piped = running.stdout.read() if running.stdout else ""
        os.close(reads)
        return terminal.decode(), piped

    return shown


def screen(text):
    """Lines of a terminal without colours, after its erasures."""
    lines = [line.rpartition(module.ERASE)[2].rstrip("\r") for line in text.split("\n")]
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in lines]


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["plan", "tiny.yaml", "--offline"], "verdict "),
        (["status"], "Fleet home is down."),
        (["ps"], "Fleet home is down."),
        (["describe", "tiny"], "error: Fleet home is down: no controller answers."),
        (["plan", "none.yaml"], "error: "),
        (["plan", "--nope"], "error: plan: no such option: --nope."),
        (["help", "plan"], "Usage: sparkfleet plan"),
        (["keys"], "Usage: sparkfleet keys"),
        (["restore", "--json"], "{"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_terminal_shows_first_that_the_verb_loads_and_then_its_answer_alone(shown, argv, answer):
    text, _ = shown(*argv)
    verb = {"ps": "status"}.get(argv[0], argv[0])
    assert text.startswith(f"{module.ERASE}{module.DIM.format(f'{verb}: loading')}")
    lines = screen(text)
    assert any(answer in line for line in lines), text
    assert not [line for line in lines if line.startswith(f"{verb}: ")], lines


def test_the_fleet_that_is_read_is_named(shown):
    text, _ = shown("plan", "tiny.yaml", "--offline")
    assert "plan: reading fleet home" in text


def test_a_pipe_gets_the_answer_only_and_nobody_a_line(shown):
    text, piped = shown("status", out="pipe")
    assert "status: " not in text
    assert module.ERASE not in text
    assert piped.splitlines()[0] == "Fleet home is down."
    assert "\x1b" not in piped, "no colour when not on a terminal"


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_erase_gets_no_line(shown, term):
    text, _ = shown("status", term=term)
    assert "loading" not in text
    assert "Fleet home is down." in text


@pytest.fixture
def line(monkeypatch, capsys):
    """The line, shown on a terminal of 20 columns, and what standard error got since then."""
    monkeypatch.setattr(module, "_on_terminal", lambda: True)
    monkeypatch.setattr(module.loading, "_verb", "")
    monkeypatch.setattr(module.shutil, "get_terminal_size", lambda: os.terminal_size((20, 24)))
    module.loading.show("reading")
    capsys.readouterr()
    yield lambda: capsys.readouterr().err
    module.loading.erase()


@pytest.mark.parametrize(
    "write",
    [
        lambda: SafeConsole(stderr=True).print(end=""),
        lambda: RawOutput().write(b""),
        lambda: print_json({}),
        module.loading.erase,
    ],
    ids=["console", "answer", "json", "erase"],
)
def test_every_output_erases_it_once(line, write):
    write()
    assert line() == module.ERASE
    write()
    assert line() == ""


def test_a_question_erases_it(line, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SparkfleetError):
        confirm("Delete?")
    assert line().startswith(module.ERASE)


def test_it_is_one_line_without_escapes(line):
    module.loading.show("reading \x1b]0;x\x07 and more than fits")
    text = line().removeprefix(module.ERASE)
    assert text == module.DIM.format("reading ?]0;x? and "), "19 of 20 columns"

import io
import os
import sys

import pytest

from sparkfleet.cli import output
from sparkfleet.cli.clients.ask import key_of
from sparkfleet.cli.escapes import RawOutput, SafeConsole, visible
from sparkfleet.errors import ControlError

TITLE = "\x1b]0;owned\x07"
CLIPBOARD = "\x1b]52;c;cm0gLXJm\x1b\\"
C1 = "\x9b2J"
BACKWARDS = "\u202eteam"


def test_control_characters_are_shown_and_tabs_and_newlines_stay():
    assert visible(f"a\tb\n{TITLE}{C1}\x7f\r{BACKWARDS}ü") == (
        "a\tb\n\\x1b]0;owned\\x07\\x9b2J\\x7f\\r\\u202eteamü"
    )


def terminal():
    """A console on a terminal, and what it printed."""
    file = io.StringIO()
    file.isatty = lambda: True
    return SafeConsole(file=file), file


@pytest.mark.parametrize("hostile", [TITLE, CLIPBOARD, C1, BACKWARDS])
def test_no_text_reaches_the_terminal_as_a_command(hostile):
    from rich.table import Table
    from rich.text import Text

    console, file = terminal()
    table = Table("name")
    table.add_row(hostile)
    for one in (hostile, Text(hostile, "red"), table):
        console.print(one)
    assert visible(hostile).strip()[:4] in file.getvalue()
    assert not any(sign in file.getvalue() for sign in ("\x1b]", "\x07", "\x9b", "\u202e"))


def test_the_console_of_the_commands_takes_no_markup_and_no_emoji_from_names(capsys):
    output.console.print("[link=http://x]press[/link] [bold]:warning:")
    assert capsys.readouterr().out == "[link=http://x]press[/link] [bold]:warning:\n"


class Sink:
    """Standard output with or without a terminal."""

    def __init__(self, terminal):
        self.buffer, self.text, self._terminal = io.BytesIO(), "", terminal

    def isatty(self):
        return self._terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize(
    ("terminal", "text", "raw"), [(True, "ü\\x1b]0;x\\x07\n", b""), (False, "", b"\xc3\xbc\x1b]0;x\x07\r\n")]
)
def test_logs_and_answers_are_filtered_on_a_terminal_only(monkeypatch, terminal, text, raw):
    sink = Sink(terminal)
    monkeypatch.setattr(sys, "stdout", sink)
    output = RawOutput()
    for part in (b"\xc3", b"\xbc\x1b]0;x\x07\r\n"):
        output.write(part)
    assert (sink.text, sink.buffer.getvalue()) == (text, raw)


def test_a_key_is_read_from_a_file_or_standard_input_or_the_environment(tmp_path, monkeypatch):
    (tmp_path / "key").write_text("sk-1\n")
    assert key_of(f"@{tmp_path / 'key'}") == "sk-1"
    monkeypatch.setattr(sys, "stdin", io.StringIO("sk-2\n"))
    assert key_of("-") == "sk-2"
    assert key_of("") == "", "the command has one made for itself"
    monkeypatch.setenv("SPARKFLEET_API_KEY", "sk-3")
    assert key_of(os.environ["SPARKFLEET_API_KEY"]) == "sk-3"


@pytest.mark.parametrize("variable", ["", "sk-3"])
def test_a_key_among_the_arguments_is_refused_with_the_ways_that_work(variable, monkeypatch):
    monkeypatch.setenv("SPARKFLEET_API_KEY", variable)
    with pytest.raises(ControlError, match="every user of this machine can see") as caught:
        key_of("sk-4")
    assert all(way in caught.value.do for way in ("--key @FILE", "--key -", "SPARKFLEET_API_KEY"))
    assert "sk-4" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("-", "no API key"),
        ("@/nowhere", "cannot be read"),
        ("a\nb", "SPARKFLEET_API_KEY contains no API key"),
    ],
)
def test_what_is_no_key_is_refused(given, words, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setenv("SPARKFLEET_API_KEY", given)
    with pytest.raises(ControlError, match=words):
        key_of(given)


def test_a_key_file_that_does_not_exist_has_a_remedy():
    with pytest.raises(ControlError) as caught:
        key_of("@/nowhere")
    assert caught.value.what == "The API key in /nowhere cannot be read: No such file or directory."
    assert "--key @FILE" in caught.value.do

from __future__ import annotations

import io
import threading

import pytest

from sparkfleet.tiny_models.progress import BuildProgress, Printer

TRAINING = BuildProgress(name="tiny", phase="training", step=3, steps=9, loss=1.234, eta_s=5.6)


class Stream(io.StringIO):
    """Counts lines, and can be a terminal."""

    def __init__(self, terminal: bool = False, wanted: int = 0) -> None:
        super().__init__()
        self._terminal = terminal
        self._wanted = wanted
        self.enough = threading.Event()

    def isatty(self) -> bool:
        return self._terminal

    def flush(self) -> None:
        if self.getvalue().count("tiny") >= self._wanted:
            self.enough.set()


def test_words():
    assert str(TRAINING) == "builtin:tiny: training, step 3 of 9, loss 1.23, about 6 s left"


@pytest.mark.parametrize("phase", ["waiting", "loading", "tokenizer", "saving"])
def test_other_phases_have_words_and_no_numbers(phase):
    words = str(BuildProgress(name="tiny", phase=phase))
    assert words.startswith("builtin:tiny: ")
    assert not any(character.isdigit() for character in words)


def test_a_new_phase_is_printed_at_once_and_steps_only_now_and_then():
    stream = Stream()
    with Printer(stream, every_s=3600) as show:
        show(BuildProgress(name="tiny", phase="loading"))
        for step in range(100):
            show(TRAINING.model_copy(update={"step": step}))
    assert len(stream.getvalue().splitlines()) == 2


def test_plain_lines_without_a_terminal():
    stream = Stream()
    with Printer(stream, every_s=3600) as show:
        show(TRAINING)
    assert stream.getvalue() == f"{TRAINING}\n"


def test_a_terminal_gets_one_line_that_is_overwritten():
    stream = Stream(terminal=True)
    with Printer(stream, every_s=0.0) as show:
        show(TRAINING)
        show(TRAINING)
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().count("\r") >= 2
    assert stream.getvalue().endswith("\n")


def test_without_new_progress_the_last_line_is_repeated():
    stream = Stream(wanted=3)
    with Printer(stream, every_s=0.01) as show:
        show(BuildProgress(name="tiny", phase="loading"))
        assert stream.enough.wait(timeout=30)
    assert stream.getvalue().splitlines()[-1].endswith("(0 s)")


def test_without_progress_nothing_is_printed():
    stream = Stream(terminal=True)
    with Printer(stream, every_s=0.01):
        pass
    assert stream.getvalue() == ""

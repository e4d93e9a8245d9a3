from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.runtime.exit_codes import KERNEL_KILLED, TOOL_LOST, blame_order, is_out_of_memory, meaning


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "should not end"),
        (1, "exited with code 1: failed"),
        (2, "refused its arguments"),
        (42, "exited with code 42: failed"),
        (127, "was not found"),
        (-9, "ended by SIGKILL: by the kernel for lack of memory, or by a person"),
        (-7, "/dev/shm"),
        (-2, "ended by SIGINT"),
        (-63, "ended by signal 63"),
        (137, "exited with code 137: a child was ended by SIGKILL"),
        (139, "a child was ended by SIGSEGV"),
        (255, "exited with code 255: failed"),
    ],
)
def test_meaning(code, words):
    assert words in meaning(code)


@pytest.mark.parametrize(
    ("code", "reason", "order"),
    [
        (None, "its node is gone", 0),
        (-9, "", 0),
        (137, "", 0),
        (1, f"the engine failed (the kernel killed 1 {KERNEL_KILLED})", 0),
        (1, f"docker {TOOL_LOST}", 0),
        (-11, "", 1),
        (139, "", 1),
        (-6, "", 2),
        (1, "", 2),
        (0, "", 3),
    ],
)
def test_of_two_ends_the_killed_one_is_the_cause(code, reason, order):
    assert blame_order(code, reason) == order


@given(st.integers(-128, 255))
def test_every_code_has_a_meaning_of_one_line(code):
    assert len(meaning(code).splitlines()) == 1


def test_a_kill_for_lack_of_memory_is_known_by_the_words_of_the_supervisor():
    killed = f"the engine {meaning(-9)}"
    assert not is_out_of_memory(f"{killed}\nlast lines of log:\n(the kernel killed 1 {KERNEL_KILLED})")
    assert is_out_of_memory(f"{killed} (the kernel killed 1 {KERNEL_KILLED})\nlast lines")

"""Ctrl-C while standard input is waited for."""

import asyncio
import io
import signal
import threading
from types import SimpleNamespace

import pytest

from sparkfleet.specs.standard_input import ended_by_ctrl_c, read_standard_input


def test_the_first_ctrl_c_ends_it_within_asyncio():
    """It only cancelled the task: `plan -` and each question waited on."""

    async def work():
        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), ended_by_ctrl_c():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before

    asyncio.run(work())


def test_another_thread_leaves_the_handler():
    seen = []

    def work():
        with ended_by_ctrl_c():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_at_most_the_limit_is_read(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"name: m")))
    assert read_standard_input(4) == b"name"

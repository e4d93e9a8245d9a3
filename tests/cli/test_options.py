"""The run of a verb's coroutine, with Ctrl-C at a bad moment."""

import asyncio
import os
import signal

import pytest

from sparkfleet.cli.options import run


def late_result():
    """Set a result of a future that is cancelled, as asyncio does if Ctrl-C comes in the middle of it."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    future.cancel()
    loop.call_soon(future.set_result, 1)


def test_ctrl_c_while_asyncio_sets_a_result_leaves_no_traceback(caplog):
    async def verb():
        os.kill(os.getpid(), signal.SIGINT)
        late_result()
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run(verb())
    assert caplog.text == ""


def test_without_ctrl_c_it_is_an_error_that_is_reported(caplog):
    async def verb():
        late_result()
        await asyncio.sleep(0)
        return 7

    assert run(verb()) == 7
    assert "InvalidStateError" in caplog.text


def test_another_error_is_reported_also_after_ctrl_c(caplog):
    async def verb():
        os.kill(os.getpid(), signal.SIGINT)
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run(verb())
    assert "ZeroDivisionError" in caplog.text

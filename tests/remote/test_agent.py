"""One protocol for every program of ours on a node, on the node's real python3."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_channel import FakeChannel
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import NodeError
from sparkfleet.remote.agent import Installed, Lines, NoAnswer, Program, ProgramError, call, validated
from sparkfleet.remote.batch import run_batch
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.local import LocalChannel
from sparkfleet.values import Value


class Sum(Value):
    total: int


def program(body: str) -> Program:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return Program("adds", "add", f"def main(request, say):\n{lines}\n")


ADDS = program("say('step', text='adding')\nreturn {'total': sum(request)}")


@pytest.fixture
def here() -> LocalChannel:
    return LocalChannel("here")


async def test_events_and_a_result(here):
    heard = []
    assert await call(here, ADDS, [1, 2], on_event=heard.append) == {"total": 3}
    assert heard == [
        {"event": "step", "text": "adding"},
        {"event": "result", "value": {"total": 3}},
    ]


async def test_over_ssh(ssh):
    value = await call(ssh, ADDS, [40, 2])
    assert validated("spark1", value, Sum) == Sum(total=42)


async def test_neither_program_nor_request_is_in_a_process_list(here):
    shown = await call(here, program("return open('/proc/self/cmdline').read()"), {"token": "s3cret"})
    assert "s3cret" not in shown
    assert "cmdline" not in shown
    assert shown.split("\0")[-2] == "adds"


async def test_only_the_standard_library_is_there(here):
    path = await call(here, program("import sys\nreturn [sys.flags.isolated, sys.flags.no_site]"), None)
    assert path == [1, 1]


async def test_an_error_has_its_meaning_and_remedy(here):
    body = "error = OSError(28, 'No space left on device')\nerror.means = 'The disk is full.'\nraise error"
    with pytest.raises(ProgramError, match=r"here: \[Errno 28\] No space left on device") as caught:
        await call(here, program(body), None)
    assert (caught.value.kind, caught.value.means) == ("OSError", "The disk is full.")


async def test_a_program_that_dies_has_no_answer(here):
    with pytest.raises(NoAnswer, match=r"here: its Python did not add \(exit code -9\): no output"):
        await call(here, program("import os\nos.kill(os.getpid(), 9)"), None)


async def test_a_program_that_is_no_python_is_reported(here):
    with pytest.raises(NoAnswer, match=r"here: its Python did not add \(exit code 1\): SyntaxError: "):
        await call(here, Program("broken", "add", "def main(:"), None)


async def test_the_end_of_a_long_output_is_shown(here):
    noise = program("import sys\nsys.exit('begin' + 500 * '-' + 'the end')")
    with pytest.raises(NoAnswer, match=r": -+the end\n"):
        await call(here, noise, None)


async def test_it_ends_with_its_time(here, herald, ended):
    waits = program(
        f"import socket, os, signal\ns = socket.create_connection(('127.0.0.1', {herald.port}))\n"
        "s.sendall(b'%d\\n' % os.getpid())\ns.close()\nsignal.pause()"
    )
    running = asyncio.create_task(call(here, waits, None, timeout_s=2))
    pid = await herald.hear_pid()
    with pytest.raises(NodeError, match="did not end within 2 s"):
        await running
    await ended(pid)


async def test_an_exception_of_on_event_ends_the_program(here):
    def refuse(event: object) -> None:
        raise ValueError(event)

    with pytest.raises(ValueError, match="adding"):
        await call(here, ADDS, [1], on_event=refuse)


async def test_a_line_without_an_end_ends_it(here, monkeypatch):
    monkeypatch.setattr("sparkfleet.remote.agent.LINE_BYTES", 1 << 20)
    with pytest.raises(NoAnswer, match="a line of more than 1048576 bytes"):
        await call(here, program("import os\nwhile True: os.write(1, b'x' * 65536)"), None, timeout_s=20)


async def test_an_installed_program_reads_its_request_alone():
    channel = FakeChannel("n1", {("/env/python",): '{"event": "result", "value": 7}\n'})
    assert await call(channel, Installed("/env/python", "sparkfleet.x"), {"secret": "s"}) == 7
    (asked,) = channel.calls
    assert asked.argv == ("/env/python", "-P", "-m", "sparkfleet.x")
    assert json.loads(asked.stdin) == {"secret": "s"}


async def test_an_installed_program_without_sparkfleet_is_reported():
    failed = Completed(argv=("p",), exit_code=1, stdout="", stderr="No module named sparkfleet\n")
    with pytest.raises(NoAnswer, match="No module named sparkfleet") as caught:
        await call(
            FakeChannel("n1", {("/env/python",): failed}), Installed("/env/python", "sparkfleet.x"), {}
        )
    assert "sparkfleet up" in caught.value.do


@pytest.mark.parametrize("value", [None, [], {"total": "7"}, {"total": 7, "more": 1}, "x\x1b"])
def test_an_answer_of_another_shape_is_refused(value):
    with pytest.raises(NodeError, match="n1: its answer is invalid"):
        validated("n1", value, Sum)


@pytest.mark.parametrize(
    "said", ["", "Welcome!\n", "[1]\n", '{"event": 1}\n', "{}\n", '{"event": "x"}\n', "{" * 9999]
)
async def test_other_words_are_no_answer(said):
    with pytest.raises(NoAnswer) as caught:
        await call(FakeChannel("n1", {ADDS.argv: said}), ADDS, [1])
    assert caught.value.what.isprintable()


async def test_control_characters_in_an_error_are_escaped():
    hostile = json.dumps({"event": "error", "kind": 1, "what": "\x1b[2J" * 999, "means": [], "do": None})
    with pytest.raises(ProgramError) as caught:
        await call(FakeChannel("n1", {ADDS.argv: hostile + "\n"}), ADDS, [1])
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@given(st.binary(max_size=200), st.integers(1, 40))
def test_lines_do_not_depend_on_how_they_arrive(content, piece):
    heard = []
    lines = Lines(heard.append)
    for start in range(0, len(content), piece):
        lines.feed(content[start : start + piece])
    assert heard == content.split(b"\n")[:-1]


def installed(python):
    """Path of an interpreter that runs; None if there is none. The shims of pyenv run only what its user has chosen."""
    found = (shutil.which(python), *sorted(Path.home().glob(f".pyenv/versions/*/bin/{python}")))
    for path in filter(None, found):
        if subprocess.run([path, "-V"], check=False, capture_output=True).returncode == 0:
            return str(path)
    return None


@pytest.mark.parametrize("python", ["python3.8", "python3.9", "python3.10", "python3.12"])
async def test_other_pythons_run_it(python):
    path = installed(python)
    if path is None:
        pytest.skip(f"{python} is not installed")

    class Other(LocalChannel):
        async def run(self, argv, **more):
            return await super().run((path, *argv[1:]), **more)

    other = Other("here")
    assert await call(other, ADDS, [1, 2]) == {"total": 3}
    (done,) = await run_batch(other, [["echo", "x"]])
    assert done.stdout == "x\n"

from __future__ import annotations

import asyncio

import pytest
from fake_channel import Call, FakeChannel, program_result
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkfleet.errors import NodeError
from sparkfleet.remote.batch import run_batch
from sparkfleet.remote.channel import Completed, not_found
from sparkfleet.remote.local import LocalChannel


@pytest.fixture
def channel() -> LocalChannel:
    return LocalChannel("here")


async def test_every_result_is_in_its_place(channel):
    argvs = [["sh", "-c", f"echo {i}; echo e{i} >&2; exit {i}"] for i in range(40)]
    done = await run_batch(channel, argvs)
    assert [(d.exit_code, d.stdout, d.stderr, d.argv[2]) for d in done] == [
        (i, f"{i}\n", f"e{i}\n", argvs[i][2]) for i in range(40)
    ]


async def test_over_ssh_it_is_one_round_trip(ssh):
    done = await run_batch(ssh, [["echo", "$HOME 'x' é"], ["no-such-program"], ["sh", "-c", "kill -9 $$"]])
    assert done[0].stdout == "$HOME 'x' é\n"
    assert done[1].what == "no-such-program was not found"
    assert "PATH" in done[1].do
    assert "`environment`" in not_found("/no/such/python").do
    assert done[2].exit_code == -9


async def test_a_command_that_cannot_be_run_is_an_error_in_its_place(channel):
    done = await run_batch(
        channel, [["no-such-program"], ["/dev/null"], [], ["true", "a\0b"], [""], ["true"]]
    )
    assert [type(d) for d in done] == [NodeError] * 5 + [Completed]
    assert "Permission denied" in done[1].what


async def test_nothing_to_run_is_no_round_trip():
    channel = FakeChannel("spark1")
    assert await run_batch(channel, []) == []
    assert channel.calls == []


async def test_a_command_that_does_not_end_is_killed_and_delays_no_other(channel, herald, ended):
    script = herald.script("import subprocess\ntell(subprocess.Popen(['sleep', '60']).pid); signal.pause()")
    done = await run_batch(channel, [script, ["echo", "x"]], timeout_s=2)
    assert done[0].what.endswith("did not end within 2 s")
    assert done[1].stdout == "x\n"
    await ended(await herald.hear_pid())


async def test_cancelling_kills_them_all(ssh, herald, ended):
    script = herald.script("import subprocess\ntell(subprocess.Popen(['sleep', '60']).pid); signal.pause()")
    running = asyncio.create_task(run_batch(ssh, [script, script]))
    children = [await herald.hear_pid(), await herald.hear_pid()]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for child in children:
        await ended(child)


async def test_output_is_bounded_and_binary_safe(channel):
    done = await run_batch(channel, [["head", "-c", "9000000", "/dev/zero"], ["printf", r"\0\377ok"]] * 20)
    kept, _, note = done[0].stdout.partition("\n")
    assert set(kept) == {"\0"}
    assert note == f"[cut: {9_000_000 - len(kept)} more bytes]"
    assert done[1].stdout == "\0\ufffdok"


async def test_a_daemon_that_keeps_the_output_open_does_not_hold_the_batch(channel, herald):
    body = "print('started', flush=True)\nif os.fork() == 0:\n    tell(os.getpid())\n    time.sleep(4)"
    done = await run_batch(channel, [herald.script(body)])
    assert (done[0].exit_code, done[0].stdout) == (0, "started\n")


async def test_a_node_without_python_is_reported():
    failed = Completed(argv=("python3",), exit_code=1, stdout="", stderr="SyntaxError")
    channel = FakeChannel("spark1", {("python3",): failed})
    with pytest.raises(NodeError, match=r"spark1: its Python did not run the commands.*SyntaxError"):
        await run_batch(channel, [["true"]])


ANSWERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("aGk="),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["exit_code", "outputs", "missing", "late", "refused"]), inner)
    ),
)


@settings(max_examples=80)
@example(answers=[None, {"exit_code": False, "outputs": [None, None]}])
@given(answers=st.lists(ANSWERS, min_size=2, max_size=2) | ANSWERS)
def test_any_answer_is_a_result_or_an_error(answers):
    def answer(call: Call) -> Completed:
        return Completed(argv=call.argv, exit_code=0, stdout=program_result(answers), stderr="")

    channel = FakeChannel("spark1", {("python3",): answer})
    try:
        done = asyncio.run(run_batch(channel, [["a"], ["b"]]))
    except NodeError:
        return
    assert all(isinstance(d, Completed | NodeError) for d in done)


async def test_messages_are_not_in_the_language_of_the_login(channel, monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    (done,) = await run_batch(channel, [["printenv", "LC_ALL"]])
    assert done.stdout == "C\n"

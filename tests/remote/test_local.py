from __future__ import annotations

import asyncio
import os
import stat
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkfleet.errors import NodeError
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.local import OUTPUT_BYTES, LocalChannel


@pytest.fixture
def channel() -> LocalChannel:
    return LocalChannel("here")


def python(body: str, *args: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", body, *args)


def test_is_a_channel(channel):
    as_channel: Channel = channel
    assert as_channel.node == "here"


async def test_output_and_exit_code(channel):
    done = await channel.run(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"))
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert done.argv[0] == sys.executable


async def test_a_signal_is_a_negative_exit_code(channel):
    done = await channel.run(python("import os; os.kill(os.getpid(), 9)"))
    assert done.exit_code == -9


async def test_stdin_reaches_the_command(channel):
    sent = b"x" * 300_000
    done = await channel.run(python("import sys; print(len(sys.stdin.buffer.read()))"), stdin=sent)
    assert done.stdout == "300000\n"


async def test_no_stdin_is_an_empty_one(channel):
    done = await channel.run(python("import sys; print(repr(sys.stdin.read()))"))
    assert done.stdout == "''\n"


async def test_a_command_need_not_read_its_stdin(channel):
    done = await channel.run(python("print('done')"), stdin=b"x" * 5_000_000)
    assert (done.exit_code, done.stdout) == (0, "done\n")


async def test_env_is_set_on_top_of_our_own(channel, monkeypatch):
    monkeypatch.setenv("OURS", "kept")
    done = await channel.run(
        python("import os; print(os.environ['OURS'], os.environ['NEW'])"), env={"NEW": "a b"}
    )
    assert done.stdout == "kept a b\n"


async def test_binary_output_is_replaced_not_refused(channel):
    done = await channel.run(python("import os; os.write(1, bytes([0, 255, 254]) + b'ok')"))
    assert done.stdout == "\x00\ufffd\ufffdok"


async def test_endless_output_is_bounded(channel):
    size = 50 << 20
    done = await channel.run(python(f"import os\nfor _ in range(50): os.write(1, b'x' * {1 << 20})"))
    kept, _, note = done.stdout.partition("\n")
    assert kept == "x" * OUTPUT_BYTES
    assert note == f"[cut: {size - OUTPUT_BYTES} more bytes]"
    assert done.exit_code == 0


@pytest.mark.parametrize("argv", [(), ("no-such-program-here",), ("/dev/null",), ("true", "a\0b")])
async def test_a_program_that_cannot_be_run_is_a_node_error(channel, argv):
    with pytest.raises(NodeError):
        await channel.run(argv)


async def test_a_missing_program_is_named(channel):
    with pytest.raises(NodeError, match="no-such-program-here was not found"):
        await channel.run(["no-such-program-here"])


GROUP = """
import subprocess
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
tell(child.pid)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pause()
"""


async def test_a_timeout_kills_the_group(channel, herald, ended):
    running = asyncio.create_task(channel.run(herald.script(GROUP), timeout_s=2))
    child = await herald.hear_pid()
    with pytest.raises(NodeError, match="did not end within 2 s"):
        await running
    await ended(child)


async def test_cancelling_kills_the_group(channel, herald, ended):
    running = asyncio.create_task(channel.run(herald.script(GROUP)))
    child = await herald.hear_pid()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await ended(child)


async def test_a_daemon_that_keeps_the_output_open_does_not_hold_the_command(channel, herald, monkeypatch):
    monkeypatch.setattr("sparkfleet.remote.local._DRAIN_S", 0.05)
    body = "print('started', flush=True)\nif os.fork() == 0:\n    tell(os.getpid())\n    signal.pause()"
    done = await channel.run(herald.script(body))
    assert (done.exit_code, done.stdout) == (0, "started\n")
    os.kill(await herald.hear_pid(), 9)


async def test_output_comes_while_the_command_runs(channel, tmp_path):
    go, seen = tmp_path / "go", bytearray()

    def on_output(piece: bytes) -> None:
        seen.extend(piece)
        go.touch()

    script = f"echo first; while [ ! -e {go} ]; do sleep 0.01; done; echo second; echo no >&2"
    done = await channel.run(["sh", "-c", script], on_output=on_output)
    assert seen.decode() == done.stdout == "first\nsecond\n"


async def test_an_exception_of_on_output_ends_the_command(channel, herald, ended):
    def on_output(piece: bytes) -> None:
        raise ValueError(piece)

    script = herald.script("tell(os.getpid()); print('x', flush=True); signal.pause()")
    with pytest.raises(ValueError, match="x"):
        await channel.run(script, on_output=on_output)
    await ended(await herald.hear_pid())


async def test_closing_ends_running_commands_with_the_reason(channel, herald, ended):
    running = asyncio.create_task(channel.run(herald.script(GROUP)))
    child = await herald.hear_pid()
    await channel.close()
    with pytest.raises(NodeError, match="the channel was closed"):
        await running
    await ended(child)
    with pytest.raises(NodeError, match="the channel was closed"):
        await channel.run(["true"])


async def test_a_port_of_this_machine_needs_no_forwarding(channel):
    async with channel.forward("127.0.0.1", 8000) as address:
        assert address == ("127.0.0.1", 8000)


async def test_commands_run_beside_each_other(channel):
    script = python("import sys; print(sys.argv[1])")
    done = await asyncio.gather(*(channel.run([*script, str(i)]) for i in range(8)))
    assert [d.stdout for d in done] == [f"{i}\n" for i in range(8)]


def test_commands_run_on_uvloop():
    """The loop of Ray Serve's replicas."""
    uvloop = pytest.importorskip("uvloop")
    channel = LocalChannel("here")

    async def run() -> None:
        done = await channel.run(python("import sys; print(sys.stdin.read()); sys.exit(3)"), stdin=b"in")
        assert (done.exit_code, done.stdout) == (3, "in\n")
        with pytest.raises(NodeError, match="was not found"):
            await channel.run(["no-such-program-here"])
        with pytest.raises(NodeError, match="did not end"):
            await channel.run(["sleep", "60"], timeout_s=0.05)

    uvloop.run(run())


ECHO = "import sys; sys.stdout.buffer.write(b'\\0'.join(a.encode(errors='surrogateescape') for a in sys.argv[1:]))"
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.sampled_from(
    ["$(reboot)", "`id`", "; ls", "a b", "*", "~", "$HOME", '"', "'", "\\", "\n", "|", "&&", "-e", "--", ""]
)


@settings(max_examples=25)
@given(words=st.lists(WORDS, min_size=1, max_size=5))
def test_arguments_arrive_verbatim(words):
    done = asyncio.run(LocalChannel("here").run([*python(ECHO), *words]))
    assert done.stdout.split("\0") == words


async def test_read_gives_a_part(channel, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert await channel.read(str(path)) == b"0123456789"
    assert await channel.read(str(path), limit=4) == b"0123"
    assert await channel.read(str(path), offset=4, limit=3) == b"456"
    assert await channel.read(str(path), offset=99) == b""
    assert b"MemTotal" in await channel.read("/proc/meminfo")


async def test_reading_a_fifo_does_not_wait(channel, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert await channel.read(str(tmp_path / "fifo")) == b""


@pytest.mark.parametrize("path", ["missing", ".", "a\0b"])
async def test_an_unreadable_file_is_a_node_error(channel, tmp_path, path):
    with pytest.raises(NodeError, match="cannot be read on here"):
        await channel.read(f"{tmp_path}/{path}")


async def test_a_negative_offset_is_a_node_error(channel):
    with pytest.raises(NodeError, match="cannot be read on here"):
        await channel.read("/proc/meminfo", offset=-1)


async def test_write_makes_a_private_file_in_a_private_directory(channel, tmp_path):
    path = tmp_path / "new" / "deep" / "file"
    await channel.write(str(path), b"first")
    await channel.write(str(path), b"second")
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(d.stat().st_mode) for d in (path.parent, path.parent.parent)} == {0o700}
    assert os.listdir(path.parent) == ["file"]


async def test_write_sets_the_mode_despite_the_umask(channel, tmp_path):
    before = os.umask(0o077)
    try:
        await channel.write(str(tmp_path / "open"), b"", mode=0o644)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o644


async def test_a_failed_write_leaves_nothing(channel, tmp_path):
    (tmp_path / "directory").mkdir()
    with pytest.raises(NodeError, match="cannot be written on here"):
        await channel.write(str(tmp_path / "directory"), b"")
    assert os.listdir(tmp_path) == ["directory"]

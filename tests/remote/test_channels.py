"""The same truths of every real channel: local and over SSH."""

import asyncio
import hashlib
import os
import stat
import sys

import pytest
from node_fixtures import GROUP

from sparkfleet.errors import NodeError
from sparkfleet.remote.bounded_output import OUTPUT_BYTES
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.local import LocalChannel


@pytest.fixture
def local():
    return LocalChannel("spark1")


@pytest.fixture(params=["local", "ssh"])
def channel(request) -> Channel:
    return request.getfixturevalue(request.param)


def python(body: str, *args: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", body, *args)


async def test_output_and_exit_code(channel):
    done = await channel.run(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"))
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert done.argv[0] == sys.executable
    assert channel.node == "spark1"


@pytest.mark.parametrize("signal", [9, 15])  # not SIGHUP: below nohup it is ignored
async def test_a_signal_is_a_negative_exit_code(channel, signal):
    done = await channel.run(python(f"import os; os.kill(os.getpid(), {signal})"))
    assert done.exit_code == -signal


async def test_stdin_reaches_the_command(channel):
    sent = os.urandom(9_000_000)
    done = await channel.run(["sha256sum"], stdin=sent)
    assert done.stdout.split()[0] == hashlib.sha256(sent).hexdigest()


async def test_no_stdin_is_an_empty_one(channel):
    assert (await channel.run(["cat"])).stdout == ""


async def test_a_command_need_not_read_its_stdin(channel):
    done = await channel.run(["echo", "done"], stdin=b"x" * 8_000_000)
    assert (done.exit_code, done.stdout) == (0, "done\n")


async def test_binary_output_is_replaced_not_refused(channel):
    done = await channel.run(python("import os; os.write(1, bytes([0, 255, 254]) + b'ok')"))
    assert done.stdout == "\x00\ufffd\ufffdok"


async def test_endless_output_is_bounded(channel):
    size = 24 << 20
    done = await channel.run(["sh", "-c", f"head -c {size} /dev/zero; head -c 5 /dev/zero >&2"])
    kept, _, note = done.stdout.partition("\n")
    assert kept == "\0" * OUTPUT_BYTES
    assert note == f"[cut: {size - OUTPUT_BYTES} more bytes]"
    assert (done.exit_code, done.stderr) == (0, "\0" * 5)


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


@pytest.mark.parametrize("argv", [(), ("no-such-program-here",), ("/dev/null",), ("true", "a\0b")])
async def test_a_program_that_cannot_be_run_is_a_node_error(channel, argv):
    with pytest.raises(NodeError):
        await channel.run(argv)


async def test_a_missing_program_is_named(channel):
    with pytest.raises(NodeError, match="no-such-program-here was not found"):
        await channel.run(["no-such-program-here"])


async def test_a_timeout_kills_the_group(channel, herald, ended):
    await channel.run(["true"])  # over SSH the time of a command includes that of a new connection
    running = asyncio.create_task(channel.run(herald.script(GROUP), timeout_s=3))
    child = await herald.hear_pid()
    with pytest.raises(NodeError, match=r"did not end within 3 s\nIt was killed"):
        await running
    await ended(child)
    assert (await channel.run(["echo", "alive"])).stdout == "alive\n"


async def test_cancelling_kills_the_group(channel, herald, ended):
    running = asyncio.create_task(channel.run(herald.script(GROUP)))
    child = await herald.hear_pid()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await ended(child)


async def test_closing_kills_running_commands_with_the_reason(channel, herald, ended):
    running = asyncio.create_task(channel.run(herald.script(GROUP)))
    child = await herald.hear_pid()
    await channel.close()
    with pytest.raises(NodeError, match="the channel was closed"):
        await running
    await ended(child)
    with pytest.raises(NodeError, match="the channel was closed"):
        await channel.run(["true"])


async def test_a_daemon_that_keeps_the_output_open_does_not_hold_the_command(channel, herald, monkeypatch):
    monkeypatch.setattr("sparkfleet.remote.local._DRAIN_S", 0.05)
    monkeypatch.setattr("sparkfleet.remote.ssh.command.DRAIN_S", 0.5)
    body = "print('started', flush=True)\nif os.fork() == 0:\n    tell(os.getpid())\n    signal.pause()"
    done = await channel.run(herald.script(body))
    assert (done.exit_code, done.stdout) == (0, "started\n")
    os.kill(await herald.hear_pid(), 9)


async def test_commands_run_beside_each_other(channel):
    done = await asyncio.gather(*(channel.run(["echo", str(i)]) for i in range(30)))
    assert [d.stdout for d in done] == [f"{i}\n" for i in range(30)]


async def test_read_gives_a_part(channel, tmp_path):
    path = tmp_path / "-a 'file' $x;\n"
    path.write_bytes(b"0123456789")
    assert await channel.read(str(path)) == b"0123456789"
    assert await channel.read(str(path), limit=4) == b"0123"
    assert await channel.read(str(path), offset=4, limit=3) == b"456"
    assert await channel.read(str(path), offset=99) == b""
    assert await channel.read(str(path), limit=0) == b""
    assert b"MemTotal" in await channel.read("/proc/meminfo")
    path.write_bytes(bytes(range(256)) * 50_000)
    assert await channel.read(str(path), limit=1 << 30) == bytes(range(256)) * 50_000


async def test_reading_a_fifo_does_not_wait(channel, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert await channel.read(str(tmp_path / "fifo")) == b""


@pytest.mark.parametrize("path", ["missing", ".", "a\0b"])
async def test_an_unreadable_file_is_a_node_error(channel, tmp_path, path):
    with pytest.raises(NodeError, match="cannot be read on spark1"):
        await channel.read(f"{tmp_path}/{path}")


async def test_a_negative_offset_is_a_node_error(channel):
    with pytest.raises(NodeError, match="cannot be read on spark1"):
        await channel.read("/proc/meminfo", offset=-1)


async def test_write_makes_a_private_file_in_a_private_directory(channel, tmp_path):
    path = tmp_path / "new 'dir'" / "$deep" / "-file"
    await channel.write(str(path), b"first")
    await channel.write(str(path), bytes(range(256)))
    assert path.read_bytes() == bytes(range(256))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(d.stat().st_mode) for d in (path.parent, path.parent.parent)} == {0o700}
    assert os.listdir(path.parent) == ["-file"]


async def test_write_obeys_the_mode(channel, tmp_path):
    await channel.write(str(tmp_path / "open"), b"", mode=0o644)
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o644


async def test_a_failed_write_leaves_nothing(channel, tmp_path):
    (tmp_path / "directory" / "full").mkdir(parents=True)
    (tmp_path / "file").touch()
    before = sorted(os.listdir(tmp_path))
    for path in ("directory", "a\0b", "file/below"):
        with pytest.raises(NodeError, match="cannot be written on spark1"):
            await channel.write(f"{tmp_path}/{path}", b"x")
    assert sorted(os.listdir(tmp_path)) == before
    assert os.listdir(tmp_path / "directory") == ["full"]

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkfleet.errors import NodeError
from sparkfleet.remote.local import LocalChannel


@pytest.fixture
def channel() -> LocalChannel:
    return LocalChannel("here")


def python(body: str, *args: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", body, *args)


async def test_env_is_set_on_top_of_our_own(channel, monkeypatch):
    monkeypatch.setenv("OURS", "kept")
    done = await channel.run(
        python("import os; print(os.environ['OURS'], os.environ['NEW'])"), env={"NEW": "a b"}
    )
    assert done.stdout == "kept a b\n"


async def test_a_program_for_any_python_needs_no_python3_in_path(channel, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = await channel.run(("python3", "-I", "-S", "-c", "import sys; print(sys.executable)"))
    assert done.stdout == f"{sys.executable}\n"
    with pytest.raises(NodeError, match="was not found"):  # its packages are another interpreter's
        await channel.run(("python3", "-I", "-c", "pass"))


async def test_a_port_of_this_machine_needs_no_forwarding(channel):
    async with channel.forward("127.0.0.1", 8000) as address:
        assert address == ("127.0.0.1", 8000)


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


def test_arguments_arrive_in_a_locale_without_their_characters():
    program = (
        "import asyncio; from sparkfleet.remote.local import LocalChannel\n"
        f"done = asyncio.run(LocalChannel('here').run(['python3', '-I', '-S', '-c', {ECHO!r}, '\\u2026 \\xb7']))\n"
        "print(ascii(done.stdout))"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"'\\u2026 \\xb7'\n", 0), done.stderr.decode()


async def test_write_sets_the_mode_despite_the_umask(channel, tmp_path):
    before = os.umask(0o077)
    try:
        await channel.write(str(tmp_path / "open"), b"", mode=0o644)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o644

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import socket
import sys
import threading
import time

import paramiko
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_fixtures import GROUP

from sparkfleet.errors import NodeError
from sparkfleet.remote.ssh.channel import SshChannel
from sparkfleet.remote.ssh.transport import Transport
from sparkfleet.remote.unreachable import ConnectionLost, Refused, Suspected, UnknownHost


def python(body: str, *args: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", body, *args)


async def test_env_arrives_verbatim_and_is_in_no_process_list(ssh):
    secret = "s3cret 'quoted' $HOME `id` \\ é\n"
    body = (
        "import os, subprocess; print(os.environ['A'], subprocess.check_output(['ps', '-efww'], text=True))"
    )
    done = await ssh.run(python(body), env={"A": secret})
    value, _, processes = done.stdout.partition(secret)
    assert (value, done.exit_code) == ("", 0)
    assert "s3cret" not in processes


async def test_env_is_on_top_of_the_nodes_own(ssh):
    done = await ssh.run(["sh", "-c", 'echo "$HOME:$NEW"'], env={"NEW": "a b"})
    home = pwd.getpwuid(os.getuid()).pw_dir  # sshd's word for it, whatever this process was told
    assert done.stdout == f"{home}:a b\n"


@pytest.mark.parametrize("name", ["", "a b", "A=B", "1A", "A;reboot", "é"])
async def test_an_invalid_variable_name_is_refused(ssh, name):
    with pytest.raises(NodeError, match="is not a variable name"):
        await ssh.run(["true"], env={name: "x"})


@pytest.mark.parametrize(
    "argv", [(), ("no-such-program-here",), ("/dev/null",), ("true", "a\0b"), ("",), ("-x",)]
)
async def test_a_program_that_cannot_be_run_is_a_node_error(ssh, argv):
    with pytest.raises(NodeError):
        await ssh.run(argv)


async def test_a_missing_program_is_named(ssh):
    with pytest.raises(NodeError, match=r"no-such-program-here was not found\nInstall it") as caught:
        await ssh.run(["no-such-program-here"])
    assert type(caught.value) is NodeError
    with pytest.raises(NodeError, match="/dev/null cannot be run: Permission denied"):
        await ssh.run(["/dev/null"])


async def test_a_command_that_exits_with_127_is_no_missing_program(ssh):
    done = await ssh.run(["sh", "-c", "no-such-program-here; exit 127"])
    assert done.exit_code == 127
    assert "not found" in done.stderr


ECHO = "import sys; sys.stdout.buffer.write(b'\\0'.join(a.encode(errors='surrogateescape') for a in sys.argv[1:]))"
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.sampled_from(
    [
        "$(reboot)",
        "`id`",
        "; ls",
        "a b",
        "*",
        "~",
        "$HOME",
        '"',
        "'",
        "\\",
        "\n",
        "|",
        "&&",
        "-e",
        "--",
        "",
        "!!",
        "}",
    ]
)


async def test_arguments_arrive_verbatim(ssh):
    hostile = ["$(id)", "'; id; '", "a\nb", "\\'", "!x", "}\n{", "\x81\x88é\ud7ff", "", "*", "%d", "\x01"]
    assert (await ssh.run([*python(ECHO), *hostile])).stdout.split("\0") == hostile


def test_any_arguments_arrive_verbatim(sshd):
    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(words=st.lists(WORDS, min_size=1, max_size=5))
    def arrive(words):
        done = loop.run_until_complete(channel.run([*python(ECHO), *words]))
        assert done.stdout.split("\0") == words

    with sshd.running(), asyncio.Runner() as runner:
        loop = runner.get_loop()
        channel = SshChannel("spark1", [sshd.hop()])
        arrive()
        runner.run(channel.close())


async def test_bytes_that_are_no_text_arrive_verbatim(ssh):
    word = os.fsdecode(bytes(range(1, 256)))
    done = await ssh.run(["sh", "-c", 'printf %s "$1" | od -An -tx1 -v', "sh", word])
    assert bytes.fromhex(done.stdout) == bytes(range(1, 256))


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh", "/usr/bin/fish", "/bin/tcsh", "/bin/zsh"])
async def test_the_constant_part_means_the_same_to_every_login_shell(ssh, shell, tmp_path):
    if not os.path.exists(shell):
        pytest.skip(f"{shell} is not installed")
    said = await ssh.run(
        [shell, "-c", """exec /bin/sh -c 'eval "$(head -c "$1")"' sparkfleet 8"""], stdin=b"echo hi\nrest"
    )
    assert said.stdout == "hi\n"


async def test_the_noise_of_login_scripts_is_left_out(sshd, tmp_path):
    noisy = tmp_path / "shell"
    noisy.write_text('#!/bin/sh\necho noise\necho noise >&2\nprintf more\neval "$SSH_ORIGINAL_COMMAND"\n')
    noisy.chmod(0o755)
    with sshd.running(options=f"ForceCommand {noisy}\n"):
        async with sshd.channel() as channel:
            done = await channel.run(["sh", "-c", "echo out; echo err >&2"])
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


async def test_an_account_that_runs_no_commands_is_reported(sshd):
    with sshd.running(options="ForceCommand echo This account is not available; exit 1\n"):
        async with sshd.channel() as channel:
            with pytest.raises(NodeError, match="did not begin: This account is not available"):
                await channel.run(["true"])


async def test_a_full_connection_can_still_kill(ssh, herald, ended):
    """sshd allows ten sessions; some are left for killing."""
    running = [asyncio.create_task(ssh.run(herald.script(GROUP))) for _ in range(12)]
    children = [await herald.hear_pid() for _ in range(8)]
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    for child in children:
        await ended(child)
    assert (await ssh.run(["echo", "alive"])).stdout == "alive\n"


async def test_waiting_for_a_session_counts_and_is_reported(ssh, herald):
    running = [asyncio.create_task(ssh.run(herald.script(GROUP))) for _ in range(8)]
    for _ in running:
        await herald.hear_pid()
    with pytest.raises(Suspected, match=r"no free session within 0\.1 s"):
        await ssh.run(["true"], timeout_s=0.1)
    for task in running:
        task.cancel()
    await asyncio.wait(running)


async def test_one_connection_serves_all_commands(sshd, proxied):
    with sshd.running():
        async with proxied(sshd.port).listening() as proxy, sshd.channel(proxy.port) as channel:
            await asyncio.gather(*(channel.run(["true"]) for _ in range(5)))
            assert proxy.connections == 1


async def test_data_sent_after_a_commands_end_keeps_the_connection(ssh, monkeypatch):
    """OpenSSH ends a connection on which anything comes for a channel that is closed. `true` reads no input."""
    send = Transport._send_user_message

    def late(transport: Transport, message: paramiko.Message) -> None:
        if message.asbytes()[0] == paramiko.common.cMSG_CHANNEL_EOF[0]:
            time.sleep(0.3)
        send(transport, message)

    await ssh.run(["true"])
    connection = ssh._connection
    with monkeypatch.context() as patch:
        patch.setattr(Transport, "_send_user_message", late)
        assert [(await ssh.run(["true"])).exit_code for _ in range(3)] == [0, 0, 0]
    assert (await ssh.run(["echo", "alive"])).stdout == "alive\n"
    assert ssh._connection is connection


async def test_a_connection_lost_in_mid_command_is_reported_and_opened_again(sshd, proxied, herald, caplog):
    with sshd.running():
        async with proxied(sshd.port).listening() as proxy, sshd.channel(proxy.port) as channel:
            running = asyncio.create_task(channel.run(herald.script("tell(os.getpid()); time.sleep(5)")))
            await herald.hear()
            proxy.cut()
            with pytest.raises(ConnectionLost, match="Commands on the node may still run"):
                await running
            with caplog.at_level(logging.WARNING, "sparkfleet"):
                assert (await channel.run(["echo", "again"])).stdout == "again\n"
            assert [r.message for r in caplog.records if "Opening a new one" in r.message]
            assert proxy.connections == 2


async def test_a_node_that_falls_silent_is_suspected(sshd, proxied, herald, monkeypatch):
    monkeypatch.setattr("sparkfleet.remote.ssh.channel._KILL_S", 0.2)
    with sshd.running():
        async with proxied(sshd.port).listening() as proxy, sshd.channel(proxy.port) as channel:
            script = herald.script("tell(os.getpid()); print('begun', flush=True); signal.pause()")
            begun = asyncio.Event()
            running = asyncio.create_task(channel.run(script, timeout_s=3, on_output=lambda _: begun.set()))
            pid = int((await herald.hear())[-1])
            await begun.wait()
            proxy.stall()
            with pytest.raises(Suspected, match="no longer answers"):
                await running
            os.kill(pid, 9)


async def silent_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def slow_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        for byte in b"SSH-2.0-OpenSSH_9.6\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)
    except OSError:
        pass
    writer.close()


async def chattering_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(range(256)) * 100)
    writer.close()


@pytest.mark.parametrize(
    ("server", "error", "connect_s"),
    [(silent_server, Suspected, 0.4), (slow_server, Suspected, 0.4), (chattering_server, Refused, 20)],
)
async def test_servers_that_do_not_speak_ssh(server, error, connect_s, sshd, serving):
    sshd.keygen("host")
    async with serving(server) as port:
        channel = SshChannel("spark1", [sshd.hop(port)], connect_s=connect_s)
        with pytest.raises(error, match="spark1"):
            await channel.run(["true"])
        await channel.close()


async def test_a_closed_port_is_refused(sshd):
    sshd.keygen("host")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with sshd.channel(taken.getsockname()[1]) as channel:
            assert channel.unreached is None
            with pytest.raises(Refused, match="Connection refused") as caught:
                await channel.run(["true"])
            assert channel.unreached is caught.value


async def test_a_node_that_was_reached_once_is_not_one_that_never_was(sshd):
    sshd.keygen("host")
    async with sshd.channel() as channel:
        with pytest.raises(Refused):
            await channel.run(["true"])
        with sshd.running():
            await channel.run(["true"])
            assert channel.unreached is None


async def test_a_name_without_an_address_is_reported(sshd):
    sshd.keygen("host")
    async with sshd.channel(host="no-such-host.invalid") as channel:
        with pytest.raises(UnknownHost, match=r"no-such-host\.invalid cannot be resolved"):
            await channel.run(["true"])


async def test_concurrent_callers_share_one_attempt(sshd, proxied, serving):
    sshd.keygen("host")
    async with serving(silent_server) as port, proxied(port).listening() as proxy:
        channel = SshChannel("spark1", [sshd.hop(proxy.port)], connect_s=0.3)
        said = await asyncio.gather(*(channel.run(["true"]) for _ in range(8)), return_exceptions=True)
        assert {type(error) for error in said} == {Suspected}
        assert proxy.connections == 1
        await channel.close()


async def test_a_server_without_sessions_is_an_error_with_the_setting(sshd, monkeypatch):
    monkeypatch.setattr("sparkfleet.remote.ssh.channel.ANSWER_S", 0.3)
    with sshd.running(options="MaxSessions 0\n"):
        async with sshd.channel() as channel:
            with pytest.raises(NodeError, match="MaxSessions"):
                await channel.run(["true"])


async def test_a_command_need_not_wait_for_a_slow_connection(sshd, serving):
    sshd.keygen("host")
    async with serving(silent_server) as port, sshd.channel(port) as channel:
        with pytest.raises(Suspected, match=r"no SSH connection within 0\.2 s"):
            await channel.run(["true"], timeout_s=0.2)


async def test_a_server_with_few_sessions_is_used_as_far_as_it_goes(sshd):
    with sshd.running(options="MaxSessions 2\n"):
        async with sshd.channel() as channel:
            done = await asyncio.gather(*(channel.run(["echo", str(i)]) for i in range(4)))
    assert [d.stdout for d in done] == [f"{i}\n" for i in range(4)]


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def _threads_ended() -> None:
    """Those of connections that are closed: they need a moment to end."""
    async with asyncio.timeout(20):
        while any(
            isinstance(t, Transport) or t.name.startswith("sparkfleet-ssh") for t in threading.enumerate()
        ):
            await asyncio.sleep(0.01)


@pytest.mark.integration
async def test_nothing_is_left_of_many_commands_and_connections(sshd):
    with sshd.running(options="MaxStartups 100\n"):
        async with sshd.channel() as channel:
            await channel.run(["true"])
            threads, descriptors = threading.active_count(), _descriptors()
            for _ in range(20):
                await asyncio.gather(*(channel.run(["true"]) for _ in range(10)))
            assert threading.active_count() <= threads + 20
            assert _descriptors() == descriptors
        await _threads_ended()
        threads, descriptors = threading.active_count(), _descriptors()
        for _ in range(50):
            async with sshd.channel() as channel:
                await channel.run(["true"])
        await _threads_ended()
        assert threading.active_count() <= threads
        assert _descriptors() == descriptors

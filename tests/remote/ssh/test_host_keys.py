from __future__ import annotations

import asyncio
import errno
import os
import socket

import paramiko
import pytest

from sparkfleet.remote.ssh.host_keys import ALL_KEY_TYPES, Deadline, fingerprint, reach
from sparkfleet.remote.unreachable import HostKeyChanged, Refused, Suspected, UnknownHost

KINDS = {"ed25519": ["-t", "ed25519"], "ecdsa": ["-t", "ecdsa"], "rsa": ["-t", "rsa", "-b", "2048"]}


def make(sshd, *kinds):
    for kind in kinds:
        sshd.keygen(kind, *KINDS[kind], "-N", "")
    return kinds


@pytest.mark.parametrize(
    ("kinds", "type_"),
    [
        (("rsa", "ecdsa", "ed25519"), "ssh-ed25519"),
        (("rsa", "ecdsa"), "ecdsa-sha2-nistp256"),
        (("rsa",), "ssh-rsa"),
    ],
)
async def test_the_key_that_is_pinned_is_the_key_that_is_negotiated(sshd, kinds, type_):
    with sshd.running(*make(sshd, *kinds)):
        key = await fingerprint("127.0.0.1", sshd.port)
        assert (key.type, key.fingerprint) == (type_, sshd.fingerprint(kinds[-1]))
        async with sshd.channel(pins=frozenset([key.fingerprint])) as channel:
            assert (await channel.run(["echo", "in"])).stdout == "in\n"


async def test_another_of_the_servers_keys_may_be_pinned(sshd):
    with sshd.running(*make(sshd, "ed25519", "ecdsa", "rsa")):
        for kind in ("ecdsa", "rsa"):
            async with sshd.channel(pins=frozenset([sshd.fingerprint(kind)])) as channel:
                assert (await channel.run(["true"])).exit_code == 0


async def test_a_changed_key_is_refused_and_nothing_is_sent(sshd):
    make(sshd, "rsa")
    with sshd.running():
        pinned = sshd.fingerprint("rsa")
        async with sshd.channel(pins=frozenset([pinned])) as channel:
            with pytest.raises(HostKeyChanged) as caught:
                await channel.run(["true"])
    error = caught.value
    assert sshd.fingerprint("host") in error.what
    assert pinned in error.what
    assert "Nothing was sent" in error.means
    assert "sparkfleet init" in error.do
    assert "userauth" not in (sshd.home / "log").read_text()


async def test_without_a_pin_nothing_is_accepted(sshd):
    with sshd.running():
        async with sshd.channel(pins=frozenset()) as channel:
            with pytest.raises(HostKeyChanged):
                await channel.run(["true"])


async def test_reading_a_key_without_a_server_is_an_error_with_the_reason():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Refused):
            await fingerprint("127.0.0.1", taken.getsockname()[1])
        taken.listen()
        with pytest.raises(Suspected, match=r"no answer from an SSH server within 0\.2 s"):
            await fingerprint("127.0.0.1", taken.getsockname()[1], timeout_s=0.2)


async def test_a_server_that_hangs_up_is_reported(serving):
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with serving(hang_up) as port:
        with pytest.raises(Refused, match="MaxStartups"):
            await fingerprint("127.0.0.1", port)


def test_paramiko_still_has_the_internals_that_are_used():
    assert set(ALL_KEY_TYPES) <= set(paramiko.Transport._preferred_keys)
    for message in (paramiko.common.MSG_CHANNEL_REQUEST, paramiko.common.MSG_CHANNEL_CLOSE):
        assert message in paramiko.Transport._channel_handler_table
    assert callable(paramiko.Transport._unlink_channel)
    channel = paramiko.Channel(1)
    assert callable(channel.in_buffer.set_event)
    assert callable(channel.in_stderr_buffer.set_event)
    assert channel.status_event.is_set() is False
    assert callable(channel.out_buffer_cv.notify_all)


async def test_a_name_of_mdns_that_is_not_found_has_its_likely_cause():
    with pytest.raises(UnknownHost) as caught:
        await fingerprint("no-such-spark.local")
    assert "NAME-2.local" in caught.value.means
    with pytest.raises(UnknownHost) as caught:
        await fingerprint("no-such-spark.invalid")
    assert caught.value.means == ""


@pytest.mark.parametrize(
    ("number", "means", "do"),
    [
        (errno.EHOSTUNREACH, "No machine answers at this address: it is off", "Switch it on"),
        (errno.ENETUNREACH, "No machine answers", "`address` in the inventory"),
        (errno.ECONNREFUSED, "nothing accepts SSH", "systemctl status ssh"),
    ],
)
def test_a_node_without_power_is_not_taken_for_one_without_sshd(monkeypatch, number, means, do):
    """A node that is off was reported as one that rejects the connection, with a look at its sshd as the remedy."""

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(Refused, match=os.strerror(number)) as caught:
        reach("192.168.1.12", 22, "spark2", Deadline(1))
    assert means in caught.value.means
    assert do in caught.value.do

"""Paramiko is used by its public interface only: what it calls its own may change with every release of it."""

from __future__ import annotations

import ast
import asyncio
import socket
import time
from pathlib import Path

import paramiko
import pytest

import sparkfleet
from sparkfleet.errors import NodeError
from sparkfleet.remote.ssh.transport import Packets, Transport

PACKAGE = Path(sparkfleet.__file__).parent
CHANNELS_OWN = set(vars(paramiko.Channel(0))) - {"active", "closed", "event", "lock", "timeout", "transport"}
"""Attributes of a channel, without names that others have, too; its documentation names methods only."""
TRANSPORTS_OWN = {"auth_handler", "channel_events", "clear_to_send", "packetizer", "saved_exception"}


def private_uses(source: str) -> list[str]:
    """Attributes in a module that are paramiko's own. Those of `self` are ours: another test holds that apart."""
    uses = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            if (
                node.attr.startswith("_") and not node.attr.endswith("__")
            ) or node.attr in CHANNELS_OWN | TRANSPORTS_OWN:
                uses.append(f"{node.lineno}: {node.attr}")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("vars", "setattr")
        ):
            uses.append(f"{node.lineno}: {node.func.id}")
    return uses


def users_of_paramiko() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if "import paramiko" in path.read_text()]


@pytest.mark.parametrize("path", users_of_paramiko(), ids=lambda path: path.name)
def test_no_private_attribute_of_paramiko_is_touched(path):
    assert private_uses(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "channel.in_buffer.set_event(e)",
        "t._unlink_channel(1)",
        "vars(paramiko.Transport)",
        "c.exit_status = 1",
    ],
)
def test_a_private_attribute_would_be_seen(line):
    assert private_uses(line)


def test_our_attributes_are_not_paramikos():
    left, right = socket.socketpair()
    with left, right:
        ours, theirs = Transport(left, ["ssh-ed25519"]), paramiko.Transport(right)
        theirs.get_security_options().key_types = ("ssh-ed25519",)
    assert set(vars(ours)) - set(vars(theirs)) == {"packets", "_wire", "_reason"}
    assert set(vars(ours.packets)) - set(vars(theirs.packetizer)) == {"_arrivals", "_handed_over"}
    for own, base in ((Transport, paramiko.Transport), (Packets, type(theirs.packetizer))):
        overridden = {name for name in vars(own) if hasattr(base, name)} - set(vars(object))
        assert not {name for name in overridden if name.startswith("_") and not name.startswith("__")}


async def test_nothing_is_kept_of_channels_that_have_ended(ssh):
    for _ in range(3):
        await ssh.run(["true"])
    packets = ssh._connection._way.last.packets
    async with asyncio.timeout(10):
        while packets._arrivals:
            await asyncio.sleep(0.01)


async def test_a_command_that_is_given_up_while_it_is_opened_takes_no_session(sshd, monkeypatch):
    """A channel that nobody waits for any more is closed as soon as it is open."""
    slow_s = 0.3
    open_session = Transport.open_session

    def late(transport: Transport) -> paramiko.Channel:
        time.sleep(slow_s)
        return open_session(transport)

    with sshd.running(options="MaxSessions 1\n"):
        async with sshd.channel() as channel:
            await channel.run(["true"])
            with monkeypatch.context() as patch:
                patch.setattr(Transport, "open_session", late)
                with pytest.raises(NodeError):
                    await channel.run(["true"], timeout_s=0.1)
            assert (await channel.run(["echo", "alive"])).stdout == "alive\n"

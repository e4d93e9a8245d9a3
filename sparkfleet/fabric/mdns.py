"""Finds Sparks on the local network by one multicast DNS query, without a daemon or a dependency.

A DGX Spark announces itself as `spark-XXXX.local` with its SSH service; other makers' machines have other names. The
question asks for a unicast answer, so no privileged port is needed (RFC 6762, 6.7: a query from another port than 5353 is
answered directly).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import NamedTuple

GROUP = "224.0.0.251"
PORT = 5353
WAIT_S = 3.0
SERVICES = ("_ssh._tcp.local", "_sftp-ssh._tcp.local", "_workstation._tcp.local")
HOST_NAMES = ("spark", "gx10-", "promaxgb10-", "edgexpert-", "zgx-", "thinkstationpgx-", "aitopatom-")
"""Beginnings of the host names at delivery: NVIDIA, ASUS, Dell, MSI, HP, Lenovo, GIGABYTE (from their owners' logs)."""
_PTR, _A, _SRV = 12, 1, 33
_MOST_RECORDS = 256
_MOST_JUMPS = 32
_LONGEST = 255


class Announced(NamedTuple):
    """A machine that answered: its host name without `.local`, and its address."""

    name: str
    address: str


class Record(NamedTuple):
    """One resource record: its name, its type, and the name or address in it."""

    name: str
    type: int
    value: str


async def discover(
    *, wait_s: float = WAIT_S, group: tuple[str, int] = (GROUP, PORT)
) -> tuple[Announced, ...]:
    """Machines that announce SSH and have a Spark's name, by name. One that is reached on two networks has one address.

    Args:
        wait_s: seconds to wait for answers.
        group: address of the query; another one in tests.
    """
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    transport, protocol = await loop.create_datagram_endpoint(_Listener, sock=sock)
    try:
        transport.sendto(question(SERVICES), group)
        await asyncio.sleep(wait_s)
    except OSError:
        return ()  # no network that carries multicast
    finally:
        transport.close()
    found = sorted((one for packet in protocol.packets for one in announced(packet)), reverse=True)
    by_name = {one.name: one for one in found if one.name.startswith(HOST_NAMES)}
    return tuple(sorted(by_name.values()))


class _Listener(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.packets: list[bytes] = []

    def datagram_received(self, data: bytes, addr: object) -> None:
        if len(self.packets) < _MOST_RECORDS:
            self.packets.append(data)


def question(services: tuple[str, ...]) -> bytes:
    """A DNS message that asks for the instances of `services`, answers by unicast."""
    header = struct.pack("!6H", 0, 0, len(services), 0, 0, 0)
    asked = (_encoded(service) + struct.pack("!2H", _PTR, 0x8001) for service in services)
    return header + b"".join(asked)


def announced(packet: bytes) -> Iterator[Announced]:
    """Every host with an IPv4 address in an answer; none if it is not a DNS message."""
    try:
        found = list(records(packet))
    except (IndexError, ValueError, struct.error):
        return
    for record in found:
        if record.type == _A and record.name.lower().endswith(".local"):
            yield Announced(record.name[: -len(".local")].lower(), record.value)


def records(packet: bytes) -> Iterator[Record]:
    """The records of a DNS message. Raises ValueError, IndexError or struct.error if it is not one."""
    _, _, questions, *counts = struct.unpack_from("!6H", packet)
    at = 12
    for _ in range(min(questions, _MOST_RECORDS)):
        _, at = _name(packet, at)
        at += 4
    for _ in range(min(sum(counts), _MOST_RECORDS)):
        name, at = _name(packet, at)
        kind, _, _, length = struct.unpack_from("!2HIH", packet, at)
        at += 10
        yield Record(name, kind, _value(packet, kind, at, length))
        at += length


def _value(packet: bytes, kind: int, at: int, length: int) -> str:
    if kind == _A:
        return str(IPv4Address(packet[at : at + 4]))
    if kind == _PTR:
        return _name(packet, at)[0]
    return _name(packet, at + 6)[0] if kind == _SRV else packet[at : at + length].hex()


def _encoded(name: str) -> bytes:
    labels = (label.encode() for label in name.split("."))
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _name(packet: bytes, at: int) -> tuple[str, int]:
    """A name, with its compression resolved, and the offset of the next field."""
    labels: list[str] = []
    end = -1
    for _ in range(_MOST_JUMPS + _LONGEST):
        length = packet[at]
        if length >= 0xC0:
            end = at + 2 if end < 0 else end
            at = struct.unpack_from("!H", packet, at)[0] & 0x3FFF
        elif length == 0:
            return _joined(labels), (at + 1 if end < 0 else end)
        else:
            labels.append(packet[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
    raise ValueError("a name that refers to itself")


def _joined(labels: list[str]) -> str:
    name = ".".join(labels)
    if not name.isprintable() or len(name) > _LONGEST:
        raise ValueError(name)
    return name

"""Fills the stand-ins of a redacted text with values of the lab. Pure.

`<node-1>`, `<subnet-2>.10`, `<mac-3>` become names, addresses and MACs of the lab's nodes if they are those of captured
nodes, and made-up ones otherwise. The same stand-in has the same value everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address

SUBNET = re.compile(r"<subnet-([0-9]{1,6})>\.([0-9]{1,3})(?![0-9])")
_MAPPED = re.compile(r"::ffff:(<subnet-[0-9]{1,6}>\.[0-9]{1,3})(?![0-9])")
_NAMED = re.compile(r"<(guid|host|ipv6|mac|machine-id|mail|node|serial|user|uuid)-([0-9]{1,6})>")
_LOCAL_V6 = re.compile(r"fe80::<ipv6-([0-9]{1,6})>")
_RAILS = 100
"""Third number of the first rail's subnet, as in NVIDIA's playbook."""


def rail_subnets(addresses: Iterable[str]) -> dict[str, str]:
    """Subnets of the lab by the stand-ins of captured ones: 192.168.100 for the first rail's, then the next."""
    found: dict[str, str] = {}
    for address in addresses:
        match = SUBNET.match(address)
        if match and match[1] not in found:
            number = _RAILS + len(found)
            found[match[1]] = f"192.168.{number}" if number < 256 else f"172.30.{number - 256}"
    return found


class StandIns:
    """Values of the lab by stand-ins.

    Args:
        known: whole stand-ins with their values: `{"<node-1>": "spark1", "<subnet-1>.21": "10.77.3.11"}`.
        subnets: the first three numbers of addresses by the number of their stand-in.
    """

    def __init__(self, known: Mapping[str, str], subnets: Mapping[str, str]) -> None:
        self._known, self._subnets = dict(known), dict(subnets)

    def with_known(self, more: Mapping[str, str]) -> StandIns:
        """The same with more values."""
        return StandIns({**self._known, **more}, self._subnets)

    def fill(self, text: str) -> str:
        """`text` without stand-ins. Removed secrets, prompts and keys stay removed."""
        text = _MAPPED.sub(lambda found: _exploded(SUBNET.sub(self._address, found[1])) or found[0], text)
        text = SUBNET.sub(self._address, text)
        text = _LOCAL_V6.sub(lambda found: f"fe80::200:ff:fe{_byte(found[1], 2)}:{_low(found[1])}", text)
        return _NAMED.sub(self._named, text)

    def _address(self, found: re.Match[str]) -> str:
        if found[0] in self._known:
            return self._known[found[0]]
        number = int(found[1])
        # 198.18.0.0/15 is for tests of networks, so that no address in it is somebody's.
        made = f"198.{18 + number // 256 % 2}.{number % 256}"
        return f"{self._subnets.get(found[1], made)}.{found[2]}"

    def _named(self, found: re.Match[str]) -> str:
        return self._known.get(found[0]) or _MADE[found[1]](found[2])


def machine_id(number: str) -> str:
    """The made-up machine-id of a stand-in, 32 hex digits."""
    return f"5fab{int(number):028x}"


def _exploded(address: str) -> str:
    """An IPv4 address as a GID table has it, or "" for what is none."""
    try:
        low = f"{int(IPv4Address(address)):08x}"
    except ValueError:
        return ""
    return f"0000:0000:0000:0000:0000:ffff:{low[:4]}:{low[4:]}"


def _byte(number: str, place: int) -> str:
    return f"{int(number) >> 8 * place & 0xFF:02x}"


def _low(number: str) -> str:
    return f"{int(number) & 0xFFFF:x}"


_MADE: dict[str, Callable[[str], str]] = {
    "guid": lambda number: f"5fab:0000:{int(number) >> 16:04x}:{int(number) & 0xFFFF:04x}",
    "host": lambda number: f"host-{number}",
    "ipv6": lambda number: f"fd5f::{int(number) >> 16:x}:{_low(number)}",
    # 02: is for MACs that no maker has given.
    "mac": lambda number: f"02:5f:ab:{_byte(number, 2)}:{_byte(number, 1)}:{_byte(number, 0)}",
    "machine-id": machine_id,
    "mail": lambda number: f"user-{number}@example.com",
    "node": lambda number: f"node-{number}",
    "serial": lambda number: f"19835{int(number):08d}",
    "user": lambda number: f"user-{number}",
    "uuid": lambda number: f"5fab0000-0000-4000-8000-{int(number):012d}",
}

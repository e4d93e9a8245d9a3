"""LLDP neighbours at the other end of a node's cables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkfleet.hostfacts.fact import Fact, json_of, text, unexpected_output
from sparkfleet.values import Value


class LldpNeighbour(Value):
    """LLDP neighbour at the other end."""

    netdev: str
    """The netdev of the node that received it."""
    system: str = ""
    """The name that the other end announces."""
    macs: tuple[str, ...] = ()
    """MACs that it announces: of its port first, of its chassis second."""
    port: str = ""
    """The port's name that it announces."""
    bridge: bool = False
    """True if it announces an enabled bridge capability."""


class ReadLldp(Fact[tuple[LldpNeighbour, ...]]):
    """Reads LLDP neighbours. `lldpctl` may be missing; it prints its rows as an object or as a list."""

    argv = ("lldpctl", "-f", "json")

    @staticmethod
    def parse(output: str) -> tuple[LldpNeighbour, ...]:
        """lldpd's JSON. Raises FactError for anything else."""
        top = json_of(output, dict, "LLDP neighbours").get("lldp")
        if not isinstance(top, dict):
            raise unexpected_output("LLDP neighbours", output)
        return tuple(_lldp(name, one) for name, one in _named(top.get("interface")))


def _named(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """`{"a": {…}}`, `[{"a": {…}}]` and `{"a": [{…}]}` alike."""
    for entry in value if isinstance(value, list) else [value]:
        for name, found in entry.items() if isinstance(entry, dict) else ():
            for one in found if isinstance(found, list) else [found]:
                if isinstance(one, dict):
                    yield _word(name), one


def _lldp(netdev: str, entry: dict[str, Any]) -> LldpNeighbour:
    port = entry.get("port")
    port = port if isinstance(port, dict) else {}
    system, chassis = _chassis(entry.get("chassis"))
    macs = (*_ids(port, "mac"), *_ids(chassis, "mac"))
    return LldpNeighbour(
        netdev=netdev,
        system=system,
        macs=tuple(dict.fromkeys(mac.lower().replace("-", ":") for mac in macs)),
        port=next(iter((*_ids(port, "ifname"), *_ids(port, "local"))), ""),
        bridge=any(_switches(one) for one in _listed(chassis.get("capability"))),
    )


def _chassis(value: Any) -> tuple[str, dict[str, Any]]:
    """Name and fields of a chassis: it is keyed by the system's name, or has no key if there is none."""
    if isinstance(value, dict) and "id" in value:
        return "", value
    return next(_named(value), ("", {}))


def _ids(holder: dict[str, Any], kind: str) -> list[str]:
    found = [one for one in _listed(holder.get("id")) if isinstance(one, dict) and one.get("type") == kind]
    return [_word(str(one.get("value", ""))) for one in found]


def _switches(capability: Any) -> bool:
    return (
        isinstance(capability, dict)
        and capability.get("type") == "Bridge"
        and capability.get("enabled") in (True, "on", "true")
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _word(value: str) -> str:
    return text(value, 128)

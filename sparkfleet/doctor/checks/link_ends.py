"""Ends of the rails of a cable, with their nodes and netdevs, for the checks of cables."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.doctor.findings import CheckFault, not_known
from sparkfleet.doctor.snapshot import EndSnapshot, FleetReadings, LinkSnapshot, NodeSnapshot, RailSnapshot
from sparkfleet.hostfacts.network.netdev import Netdev

FABRIC = "sparkfleet fabric apply"
"""Addresses and MTU of all rails, as the inventory has them."""


def rails_of(link: LinkSnapshot) -> Iterator[tuple[str, RailSnapshot]]:
    """The rails of a cable, each with its name: "rail 1 of spark1-spark2"."""
    for number, rail in enumerate(link.rails, start=1):
        yield f"rail {number} of {link.name}", rail


def ends_of(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[tuple[str, EndSnapshot, NodeSnapshot]]:
    """Both ends of each rail, with the rail's name."""
    for name, rail in rails_of(link):
        for end in rail.ends:
            yield name, end, fleet.node(end.node)


def netdevs_of(
    link: LinkSnapshot, fleet: FleetReadings
) -> Iterator[tuple[str, EndSnapshot, NodeSnapshot, Netdev]]:
    """The same of ends whose netdev exists."""
    for rail, end, node in ends_of(link, fleet):
        netdev = node.netdev(end.netdev)
        if netdev is not None:
            yield rail, end, node, netdev


def not_read(what: str, end: EndSnapshot, node: NodeSnapshot, field: str) -> CheckFault:
    """The finding for a fact of an end that was not read, with the reason."""
    why = node.unknown.get(field, "it was not read").rstrip(".")
    return not_known(f"{what} of {end.netdev} on {end.node}: not known, because {why}")


def why_down(netdev: Netdev | None) -> str:
    """The reason for which a netdev carries nothing; "" if it may carry."""
    if netdev is None:
        return "does not exist"
    if not netdev.up:
        return "is switched off"
    return "" if netdev.carrier else "has no carrier"

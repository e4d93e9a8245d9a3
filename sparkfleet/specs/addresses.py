"""Addresses in an inventory: of machines, of listeners, of the ends of rails. Other text is refused."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface
from typing import Annotated

from pydantic import AfterValidator, Field

from sparkfleet.specs.fields import Form, Problem, quote, refuse

Interface = IPv4Interface | IPv6Interface
PortNumber = Annotated[int, Field(ge=1, le=65_535)]

_ADDRESS = Form(
    r"[A-Za-z0-9]([A-Za-z0-9_-]{0,62}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]{0,62}[A-Za-z0-9])?)*"
    r"|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]{1,31})?",
    "an IP address or a host name",
)
_RAIL_ADDRESS = Form(
    r"[0-9A-Fa-f:.]+/[0-9]{1,3}", "an address with its prefix length, such as 192.168.100.10/24"
)


def _ip(text: str) -> str:
    """Refuse text that looks like an IP address and is none."""
    return _demand(not _numeric(text) or _parsed(text) is not None, text, "is no IP address", _ADDRESS)


def _one_machine(text: str) -> str:
    """Refuse IP addresses that no single machine can have."""
    return _demand(not _numeric(text) or _single(_parsed(text)), text, "is no machine's address", _ADDRESS)


def _on_a_rail(text: str) -> str:
    """Refuse addresses that no netdev can have, such as the subnet's own or its broadcast address."""
    try:
        usable = _usable(ip_interface(text))
    except ValueError:
        usable = False
    return _demand(usable, text, "is no netdev's address", _RAIL_ADDRESS)


def _demand(holds: bool, text: str, why_not: str, form: Form) -> str:
    problem = Problem((), f"found {quote(text)}, which {why_not}. Expected {form.expected}.")
    refuse([] if holds else [problem])
    return text


def _numeric(text: str) -> bool:
    return ":" in text or text.rpartition(".")[2].isdigit()


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _single(address: IPv4Address | IPv6Address | None) -> bool:
    return address is not None and not (address.is_multicast or address.is_unspecified)


def _usable(interface: Interface) -> bool:
    network, address = interface.network, interface.ip
    reserved = network.num_addresses > 2 and address in (network.network_address, network.broadcast_address)
    return _single(address) and not (reserved or address.is_loopback)


def is_loopback(host: str) -> bool:
    """True if only the machine itself reaches a listener on this address or name."""
    parsed = _parsed(host)
    return host == "localhost" if parsed is None else parsed.is_loopback


ListenAddress = Annotated[str, _ADDRESS, AfterValidator(_ip)]
Address = Annotated[str, _ADDRESS, AfterValidator(_ip), AfterValidator(_one_machine)]
RailAddress = Annotated[str, _RAIL_ADDRESS, AfterValidator(_on_a_rail)]

"""The machine that a Host header names: a page in a browser reaches loopback under a name of its own (DNS rebinding)."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9.]{1,64}))(?::[0-9]{1,5})?")


def address_in(host: str) -> str | None:
    """The IP address of a Host header, or `localhost`, without the port; None if it has another name."""
    match = _HOST.fullmatch(host)
    if match is None:
        return None
    found: str = match["v6"] or match["name"]
    return found if found == "localhost" or _is_ip(found) else None


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

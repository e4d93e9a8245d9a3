"""Finds the netdev of this node that has a given address. Standard library only."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_IFREQ_BYTES = 256


def netdev_of(address: str) -> str:
    """The name of the netdev with an IPv4 address, or with the address of a host name; "" if none has it."""
    try:
        wanted = socket.gethostbyname(address)
    except OSError:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{_IFREQ_BYTES}s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(answer[20:24]) == wanted:
                return name
    return ""

"""Listening sockets of a node, and the addresses they are reachable at."""

from __future__ import annotations

import re
from ipaddress import ip_address

from sparkfleet.hostfacts.fact import Fact, text, unexpected_output
from sparkfleet.values import Value

_PROCESS = re.compile(r'\("([^"]{1,64})",pid=(\d{1,10})', re.ASCII)
_ANY = frozenset({"*", "0.0.0.0", "::"})  # noqa: S104  # what others listen on, not us


class ListeningSocket(Value):
    """A TCP socket that accepts connections."""

    address: str
    """"*" for any address; a scope (`%eth0`) is left out."""
    port: int
    process: str = ""
    """"" if it belongs to another user."""
    pid: int | None = None
    """The first process that holds it; None if it belongs to another user."""
    pids: tuple[int, ...] = ()
    """All of them: those of a server with workers share it."""

    @property
    def anywhere(self) -> bool:
        """True if it listens on every address of the node."""
        return self.address == "*"

    @property
    def local(self) -> bool:
        """True if only the node itself can reach it."""
        return not self.anywhere and ip_address(self.address).is_loopback


class ReadSockets(Fact[tuple[ListeningSocket, ...]]):
    """Listening TCP sockets, with the processes of this user."""

    argv = ("ss", "-Hltnp")

    @staticmethod
    def parse(output: str) -> tuple[ListeningSocket, ...]:
        """Sockets from lines such as `LISTEN 0 4096 127.0.0.1:8000 0.0.0.0:* users:(("python3",pid=1,fd=3))`."""
        lines = [line for line in output.splitlines()[:20_000] if line.strip()]
        # The batch truncates a very long list and ends it with a line about that; the line before that is incomplete.
        if lines and lines[-1].startswith("[cut: "):
            del lines[-2:]
        return tuple(_socket(line) for line in lines)


def _socket(line: str) -> ListeningSocket:
    words = line[:2000].split()
    if len(words) < 5 or words[0] != "LISTEN":
        raise unexpected_output("the listening sockets", line)
    host, _, port = words[3].rpartition(":")
    found = _PROCESS.findall(line[:2000])
    return ListeningSocket(
        address=_address(host, line),
        port=_port(port, line),
        process=text(found[0][0]) if found else "",
        pid=int(found[0][1]) if found else None,
        pids=tuple(int(pid) for _, pid in found),
    )


def _port(word: str, line: str) -> int:
    if not re.fullmatch(r"\d{1,5}", word, re.ASCII):
        raise unexpected_output("the listening sockets", line)
    return int(word)


def _address(word: str, line: str) -> str:
    plain = word.partition("%")[0].strip("[]")  # as `ss` prints it: [fe80::1]%eth0
    if plain in _ANY:
        return "*"
    try:
        found = ip_address(plain)
        # A dual-stack socket on an IPv4 address is shown as ::ffff:127.0.0.1.
        return str(getattr(found, "ipv4_mapped", None) or found)
    except ValueError:
        raise unexpected_output("the listening sockets", line) from None

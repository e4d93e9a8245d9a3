"""The machines and the login that a person names on the command line, or that the LAN has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from sparkfleet.errors import SparkfleetError
from sparkfleet.fabric.mdns import Announced, discover
from sparkfleet.specs.fields import HomePath, quote
from sparkfleet.specs.inventory import Inventory

_HOST = re.compile(
    r"(?:(?P<user>[^@\s]{1,64}(?:@[^@\s]{1,64})?)@)?"
    r"(?P<address>\[[^\]\s]+\]|[^@:\s]+|[^@\s]*:[^@\s]*:[^@\s]*)(?::(?P<port>[0-9]{1,5}))?"
)


class Host(NamedTuple):
    """A machine to enrol, as a person writes it."""

    user: str | None
    address: str
    port: int

    @property
    def where(self) -> tuple[str, int]:
        """The address and port."""
        return self.address, self.port


def parse_host(text: str) -> Host:
    """`[user@]address[:port]`; an IPv6 address with a port is in brackets. Raises SparkfleetError."""
    match = _HOST.fullmatch(text)
    if match is None or not 0 < int(match["port"] or 22) < 1 << 16:
        raise SparkfleetError(f"HOST {quote(text)} is not valid.", do="Write it as [user@]address[:port].")
    return Host(match["user"], match["address"].strip("[]"), int(match["port"] or 22))


def hosts_of(old: Inventory | None) -> list[Host]:
    """The machines of an inventory; none if it has only this machine, as the packaged one."""
    if old is None or all(node.is_local for node in old.nodes.values()):
        return []
    return [Host(node.user, node.address, node.port) for node in old.nodes.values()]


async def hosts_on_lan() -> tuple[Announced, ...]:
    """Sparks that announce themselves on the LAN. Raises SparkfleetError if there is none."""
    found = await discover()
    if not found:
        raise SparkfleetError(
            "No Spark answered on this network.",
            means="mDNS does not cross routers, guest Wi-Fi often blocks it, and a machine with a name of your own is not"
            " recognised.",
            do="Give their addresses: `sparkfleet init HOST…`.",
        )
    return found


def require_identity(identity: str) -> None:
    """Raises SparkfleetError unless a private key can be there: as a file, or in the agent with its public half there."""
    with valid_words("--identity-file"):
        TypeAdapter(HomePath).validate_python(identity)
    path = Path(identity).expanduser()
    if not (path.is_file() or path.with_name(path.name + ".pub").is_file()):
        raise SparkfleetError(
            f"--identity-file {identity}: {'this is no file' if path.exists() else 'there is no such file'}.",
            means="No machine was contacted.",
            do="Name the private key that logs in to the machines; without it, the usual ones and the agent's are tried.",
        )


@contextmanager
def valid_words(option: str = "") -> Iterator[None]:
    """Rejects words that are no user name, address, file or name of a fleet. `option`: name of a bare value."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or option
        raise SparkfleetError(f"{where}: {first['msg']}", do="Correct the command line.") from None

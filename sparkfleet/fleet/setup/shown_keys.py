"""Host keys that machines present, and the nodes with those that a person has confirmed."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.setup.hosts import Host, valid_words
from sparkfleet.fleet.setup.moved_nodes import moved_nodes
from sparkfleet.remote.unreachable import Refused, UnknownHost
from sparkfleet.specs.inventory import Inventory, Node

if TYPE_CHECKING:  # a slow import, for other machines only
    from sparkfleet.remote.ssh.host_keys import HostKey

_CHECK_HOST = "Check the HOST that was given; with another port it is `sparkfleet init USER@HOST:PORT`."
"""Remedy for a machine that no inventory has."""


class ShownKey(NamedTuple):
    """The host key that a machine presents, beside the pinned one."""

    where: tuple[str, int]
    """Address and port."""
    key: HostKey
    pinned: str | None
    """Fingerprint in the inventory; None if the machine is new."""
    is_known: bool
    """True if the key is in `~/.ssh/known_hosts`, and that is accepted."""
    moved: str = ""
    """Node of the inventory that had this key at another address, where it is no longer."""

    @property
    def name(self) -> str:
        """`spark1`, or `[spark1]:2222`."""
        return _at(self.where)

    @property
    def is_changed(self) -> bool:
        """True if it differs from the pinned key."""
        return self.pinned is not None and self.pinned != self.key.fingerprint

    @property
    def is_new(self) -> bool:
        """True if neither the inventory nor known_hosts has a key of this machine."""
        return self.pinned is None and not self.is_known


async def read_keys(
    hosts: Sequence[Host], old: Inventory | None, *, accept_known: bool
) -> tuple[ShownKey, ...]:
    """The host keys that the machines present, without a login. This machine and nodes behind a jump host have none.

    Raises:
        Unreachable: a machine does not answer.
    """
    from sparkfleet.remote.ssh.host_keys import fingerprint

    before = _before(old)
    given = dict.fromkeys(host.where for host in hosts)
    far = [one for one in given if one[0] != "local" and not (one in before and before[one].jump)]

    async def read(address: str, port: int) -> HostKey:
        try:
            return await fingerprint(address, port)
        except (Refused, UnknownHost) as error:
            if (address, port) in before:
                raise
            raise type(error)(error.what, means=error.means, do=_CHECK_HOST) from error

    answers = await asyncio.gather(*(read(*one) for one in far), return_exceptions=True)
    keys = [one for one in answers if not isinstance(one, BaseException)]
    if len(keys) < len(answers):
        raise _all_of([one for one in answers if isinstance(one, BaseException)])
    moved = await moved_nodes(dict(zip(far, keys, strict=True)), old, set(given))
    return tuple(
        ShownKey(
            where,
            key,
            key.fingerprint if where in moved else before[where].host_key if where in before else None,
            accept_known and _is_known(where, key),
            moved.get(where, ""),
        )
        for where, key in zip(far, keys, strict=True)
    )


def _all_of(failed: Sequence[BaseException]) -> BaseException:
    """The first error, with what happened at each of the machines that did not answer."""
    first = next((one for one in failed if not isinstance(one, SparkfleetError)), failed[0])
    if isinstance(first, SparkfleetError):
        first.what = "\n".join(one.what for one in failed if isinstance(one, SparkfleetError))
    return first


def pinned_nodes(
    hosts: Sequence[Host],
    keys: Sequence[ShownKey],
    old: Inventory | None,
    *,
    user: str | None,
    identity: str | None,
) -> list[Node]:
    """The nodes with the confirmed keys. Raises SparkfleetError for a user name or address that cannot be one."""
    before = _before(old)
    shown = {one.where: one.key for one in keys}
    if old is not None:
        before |= {one.where: old.nodes[one.moved] for one in keys if one.moved}
    users = {host.where: host.user for host in hosts if host.user}
    given = dict.fromkeys(host.where for host in hosts)
    with valid_words():
        return [
            _node(where, shown.get(where), before.get(where), users.get(where) or user, identity)
            for where in given
        ]


def _before(old: Inventory | None) -> dict[tuple[str, int], Node]:
    return {(node.address, node.port): node for node in old.nodes.values()} if old else {}


def _node(
    where: tuple[str, int], key: HostKey | None, before: Node | None, user: str | None, identity: str | None
) -> Node:
    address, port = where
    if address == "local":
        return before or Node(address="local")
    if before is not None:
        given = {"user": user, "identity_file": identity}
        changed = {name: value for name, value in given.items() if value is not None}
        changed |= {"host_key": key.fingerprint} if key else {}
        changed |= {"address": address}
        ports = {"port": port} if port != before.port else {}
        return Node.model_validate({**before.model_dump(exclude_unset=True), **changed, **ports})
    fields = {"address": address, "user": user or getpass.getuser()}
    optional = {"port": port if port != 22 else None, "identity_file": identity}
    return Node.model_validate(
        {**fields, "host_key": key.fingerprint if key else None}
        | {name: value for name, value in optional.items() if value is not None}
    )


def _is_known(where: tuple[str, int], key: HostKey) -> bool:
    from sparkfleet.remote.ssh.config import known_hosts

    entries = known_hosts(Path.home() / ".ssh" / "known_hosts").lookup(_at(where))
    return entries is not None and any(one.fingerprint == key.fingerprint for one in entries.values())


def _at(where: tuple[str, int]) -> str:
    address, port = where
    return address if port == 22 else f"[{address}]:{port}"

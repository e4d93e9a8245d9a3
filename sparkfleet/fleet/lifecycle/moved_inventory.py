"""The inventory after the head was moved: another head, and an address of that one for the gateway."""

from __future__ import annotations

import re
from pathlib import Path

from sparkfleet.errors import SpecError
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.specs.addresses import is_loopback
from sparkfleet.specs.inventory import Inventory


def gateway_host(inventory: Inventory, new: str) -> str:
    """The address of the gateway on another head: its own, or the one that corresponds to it there.

    Raises:
        SpecError: it is an address of the present head, and the inventory has none of the new one that corresponds to it.
    """
    host, after = inventory.gateway.host, inventory.model_copy(update={"head": new})
    if is_loopback(host) or after.entry_host(new) == host:
        return host
    found = inventory.entry_host(new)
    if found is None:
        raise SpecError(
            f"The gateway listens on {host}, and the inventory has no address of {new} that corresponds to it.",
            means="The head was not moved: its endpoint could not listen there.",
            do=f"Set `gateway: {{host: …}}` in the inventory to an address of {new}, or to 0.0.0.0 for every one.",
        )
    return found


def inventory_after(inventory: Inventory, new: str, host: str) -> Inventory:
    """The inventory with another head, whose gateway listens on `host`."""
    if host == inventory.gateway.host:
        # One without `gateway` stays so: that keeps the address that a fleet has.
        return inventory.model_copy(update={"head": new})
    gateway = inventory.gateway.model_copy(update={"host": host})
    return inventory.model_copy(update={"head": new, "gateway": gateway})


def head_named(text: str, old: str, new: str) -> str | None:
    """An inventory's text with another head; None if its `head:` is not a line of its own."""
    line = re.compile(rf"^head:[ \t]*{re.escape(old)}([ \t]*)(?=#|\r?$)", flags=re.MULTILINE)
    changed, count = line.subn(lambda found: f"head: {new}{'  ' if found[1] else ''}", text)
    return changed if count == 1 else None


def host_named(text: str, old: str, new: str) -> str | None:
    """An inventory's text with another address of the gateway; None if its `host:` is not the only one with that address."""
    field = re.compile(
        rf"(?<![\w-])host:([ \t]*)(['\"]?){re.escape(old)}\2(?=[ \t]*(?:[,}}#]|\r?$))", flags=re.MULTILINE
    )
    changed, count = field.subn(lambda found: f"host:{found[1]}{found[2]}{new}{found[2]}", text)
    return changed if count == 1 else None


def name_head(file: Path, before: Inventory, after: Inventory) -> bool:
    """Write the new head, and its gateway's address, into an inventory file, and nothing else; False if a person has to."""
    try:
        file = file.resolve()  # a link stays one
        text = head_named(file.read_bytes().decode(), before.head, after.head)
        if text is not None and after.gateway.host != before.gateway.host:
            text = host_named(text, before.gateway.host, after.gateway.host)
        if text is not None:
            write_atomically(file, text.encode(), mode=file.stat().st_mode & 0o777)
    except (OSError, UnicodeDecodeError):
        return False
    return text is not None

"""A key of the endpoint for one command, for owners who reach the controller and have no key at hand."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.gateway.routing_table import KeyLimits

LASTS_S = 900.0
"""The key is refused after that, if the command was killed and could not revoke it."""
AT_ONCE = 9
"""Commands that may have such a key at once. Their names are few, because usage is counted and exported by name."""
_NAME = re.compile(r"sparkfleet-ask-[1-9]")


def key_for(client: FleetClient, key: str) -> contextlib.AbstractAsyncContextManager[str]:
    """The key that was given, or one of its own if that is ""."""
    return contextlib.nullcontext(key) if key else passing_key(client)


@contextlib.asynccontextmanager
async def passing_key(client: FleetClient) -> AsyncIterator[str]:
    """A new key, revoked when the block ends. Those that killed commands left behind are revoked once they have expired.

    Args:
        client: of the fleet; not entered.

    Raises:
        ControlError: the controller cannot make one.
    """
    now = time.time()
    async with client.again() as asking:
        for row in await asking.keys():
            if _NAME.fullmatch(row.name) and row.limits.expires is not None and row.limits.expires <= now:
                with contextlib.suppress(SparkfleetError):  # another command has revoked it meanwhile
                    await asking.revoke_key(row.name)
        name, text = await _make(asking, now + LASTS_S)
    try:
        yield text
    finally:
        with contextlib.suppress(SparkfleetError):  # it expires
            async with client.again() as asking:
                await asking.revoke_key(name)


async def _make(client: FleetClient, expires: float) -> tuple[str, str]:
    for number in range(1, AT_ONCE + 1):
        name = f"sparkfleet-ask-{number}"
        if name in {row.name for row in await client.keys()}:
            continue
        try:
            made = await client.create_key(name, KeyLimits(expires=expires, concurrent=1))
        except ControlError:
            if name not in {row.name for row in await client.keys()}:
                raise  # not another command at the same moment
            continue
        return name, made["key"]
    raise ControlError(
        f"{AT_ONCE} commands without a key of their own run already.",
        do=f"Pass one with --key @FILE, or wait: what was killed gives its key back after {LASTS_S / 60:.0f} minutes.",
    )

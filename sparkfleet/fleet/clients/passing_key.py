"""A key of the endpoint for one command, for owners who reach the controller and have no key at hand."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.gateway.routing_table import PASSING_KEY, KeyLimits

LASTS_S = 900.0
"""`lasts_s` of a key for one question."""
AT_ONCE = 9
"""Commands that may have such a key at once. Their names are few, because usage is counted and exported by name."""
_NAME = re.compile(rf"{PASSING_KEY}[1-9]")


def key_for(
    client: FleetClient, key: str, concurrent: int = 1, lasts_s: float = LASTS_S
) -> contextlib.AbstractAsyncContextManager[str]:
    """The key that was given, or one of its own if that is "", see `passing_key`."""
    return contextlib.nullcontext(key) if key else passing_key(client, concurrent, lasts_s)


@contextlib.asynccontextmanager
async def passing_key(
    client: FleetClient, concurrent: int = 1, lasts_s: float = LASTS_S
) -> AsyncIterator[str]:
    """A new key, revoked when the block ends. Those that killed commands left behind are revoked once they have expired.

    Args:
        client: of the fleet; not entered.
        concurrent: requests that it may have at once.
        lasts_s: seconds after which it is refused, if the command was killed and could not revoke it.

    Raises:
        ControlError: the controller cannot make one.
    """
    now = time.time()
    async with client.again() as asking:
        for row in await asking.keys():
            if _NAME.fullmatch(row.name) and row.limits.expires is not None and row.limits.expires <= now:
                with contextlib.suppress(SparkfleetError):  # another command has revoked it meanwhile
                    await asking.revoke_key(row.name)
        name, text = await _make(asking, KeyLimits(expires=now + lasts_s, concurrent=concurrent))
    try:
        yield text
    finally:
        with contextlib.suppress(SparkfleetError):  # it expires
            async with client.again() as asking:
                await asking.revoke_key(name)


async def _make(client: FleetClient, limits: KeyLimits) -> tuple[str, str]:
    for number in range(1, AT_ONCE + 1):
        name = f"{PASSING_KEY}{number}"
        if name in {row.name for row in await client.keys()}:
            continue
        try:
            made = await client.create_key(name, limits)
        except ControlError:
            if name not in {row.name for row in await client.keys()}:
                raise  # not another command at the same moment
            continue
        return name, made["key"]
    raise ControlError(
        f"{AT_ONCE} commands without a key of their own run already.",
        do=f"Pass one with --key @FILE, or wait: what was killed gives its key back after {LASTS_S / 60:.0f} minutes.",
    )

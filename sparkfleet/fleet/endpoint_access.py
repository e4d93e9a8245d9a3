"""Access to the fleet's endpoint from here: its URL, its certificate, and both in words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.errors import ControlError
from sparkfleet.fleet.node_access import NodeAccess

if TYPE_CHECKING:
    from aiohttp import Fingerprint

SERVING_S, LOOK_S = 15.0, 0.2
"""A new gateway has its table 1 to 3 s after its node has joined."""
CERTIFICATE_TRIES, POLL_S = 20, 0.5
"""A gateway reports its certificate within 5 s of a change."""


class EndpointAccess:
    """The endpoint of one fleet."""

    def __init__(self, access: NodeAccess) -> None:
        self._access = access

    async def trust(self, client: FleetClient) -> Fingerprint | bool:
        """The `ssl` of aiohttp's requests to the endpoint: its certificate as the controller knows it, under any address.

        Raises:
            ControlError: the endpoint has TLS, and the controller knows no certificate yet.
        """
        if client.address.tls is None:
            return True
        from aiohttp import Fingerprint  # a slow import

        async with client.again() as asking:
            for _ in range(CERTIFICATE_TRIES):
                found = (await asking.fleet()).certificate
                if found is not None:
                    return Fingerprint(bytes.fromhex(found.sha256))
                await asyncio.sleep(POLL_S)
        raise ControlError(
            "No gateway has reported its certificate yet.",
            do="`sparkfleet status`, then the same command again.",
        )

    async def until_serving(self, client: FleetClient, wait_s: float = SERVING_S) -> bool:
        """Wait until the gateway answers and has its routing table. False if it has none within `wait_s`.

        Before that every request gets a 503 (`starting`), also one for a deployment on demand, which nothing else waits for.
        """
        import aiohttp  # a slow import

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                trusted = await self.trust(client)
                async with self.url(client) as url, aiohttp.ClientSession() as http:
                    while True:
                        with contextlib.suppress(aiohttp.ClientError, ValueError):
                            async with http.get(f"{url}/health", ssl=trusted) as answer:
                                if (await answer.json())["status"] == "ok":
                                    return True
                        await asyncio.sleep(LOOK_S)
        return False

    @contextlib.asynccontextmanager
    async def url(self, client: FleetClient) -> AsyncIterator[str]:
        """A base URL of the gateway from here: through SSH if it listens only on the head's loopback."""
        address, reach = client.address, self._access.reach
        if reach is None and address.gateway_host == "0.0.0.0":  # noqa: S104 (compared, not bound)
            yield f"{address.scheme}://127.0.0.1:{address.gateway_port}/v1"  # its address on the network may have changed
        elif reach is None or not address.is_private:
            yield address.endpoint
        else:
            async with reach(address.gateway_host, address.gateway_port) as (host, port):
                yield f"{address.scheme}://{host}:{port}/v1"

    def words(self, client: FleetClient) -> str:
        """Address of the gateway, for a person."""
        address = client.address
        if self._access.reach is None or not address.is_private:
            others = ", ".join(address.endpoint_at(one) for one in address.entries)
            return f"Endpoint: {address.endpoint}" + (f", also {others}" if others else "")
        open_ = "`gateway: {host: 0.0.0.0}` in the inventory opens it to the network"
        return f"Endpoint: {address.endpoint} (only on {self._access.inventory.head}; {open_})"

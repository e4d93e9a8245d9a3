"""Connections to engines, kept for a moment between requests."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from sparkfleet.gateway.engine.connection import EngineConnection
from sparkfleet.gateway.errors.request_errors import no_files
from sparkfleet.gateway.http.server_socket import files_ran_out, watch_peer

CONNECT_S = 2.0
"""Time limit to open a connection. The kernel of a live engine's node accepts within milliseconds."""
TLS_CONNECT_S = 8.0
"""The same for a connection with TLS to an endpoint outside the fleet, with the look-up of its name."""
IDLE_S = 2.0
"""Longest time for which an idle connection is kept, s: less than uvicorn's 5 s, so that engines rarely close one first."""
_STEPS = 64
_SWEEPS = 16
"""Looks at idle connections in `IDLE_S`."""
log = logging.getLogger(__name__)
KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""TCP keepalive: a request to a node without power fails after 25 s without an answer of its kernel."""


class EngineLost(Exception):
    """An engine was lost before the first byte of its answer.

    Args:
        deliveries: times that it had the request, which may then have killed it.
    """

    def __init__(self, why: str, *, deliveries: int) -> None:
        super().__init__(why)
        self.deliveries = deliveries


class EnginePool:
    """Connections to engines by address, kept for `IDLE_S` between requests."""

    def __init__(self) -> None:
        self._idle: dict[EngineAddress, list[EngineConnection]] = defaultdict(list)
        self._open: dict[EngineConnection, EngineAddress] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        """The next look at idle connections; None: there are none. A timer of each would cost every request."""
        self._kept = 0

    async def take(self, url: str, *, fresh: bool) -> EngineConnection:
        """A connection to the engine at `url`.

        Args:
            url: `http://host:port`; for endpoints outside the fleet with a path, or with https.
            fresh: a new one, not one that the engine may just have closed.

        Raises:
            EngineLost: there is none within `CONNECT_S`.
            ApiError: 503, this process has no file left for it, of which no engine is the cause.
        """
        at = address_of(url)
        while not fresh and (idle := self._idle.get(at)):
            kept = idle.pop()
            if not idle:
                del self._idle[at]  # engines have another port after each start
            if kept.is_free:
                return kept
            self._drop(kept)
        try:
            async with asyncio.timeout(TLS_CONNECT_S if at.tls else CONNECT_S):
                return await self._connect(at)
        except TimeoutError:
            raise EngineLost("no connection in time", deliveries=0) from None
        except OSError as error:
            if files_ran_out(error):
                refusal = no_files()
                log.error("no connection to %s: %s", url, refusal.what)
                raise refusal from error
            raise EngineLost(str(error), deliveries=0) from error

    def give_back(self, connection: EngineConnection) -> None:
        """Keeps a connection that has carried a whole answer, and closes any other."""
        connection.in_use = False
        if not connection.is_free or connection not in self._open:
            return self._drop(connection)
        self._idle[self._open[connection]].append(connection)
        loop = asyncio.get_running_loop()
        # A thousand that were left together must not be closed in one step: it would hold up every stream.
        self._kept = (self._kept + 1) % _STEPS
        connection.idle_until = loop.time() + IDLE_S * (0.5 + 0.5 * self._kept / _STEPS)
        if self._sweeping is None:
            self._sweeping = loop.call_later(IDLE_S / _SWEEPS, self._sweep)
        return None

    def close(self) -> None:
        """Closes all."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in tuple(self._open):
            self._drop(connection)
        self._idle.clear()

    async def _connect(self, at: EngineAddress) -> EngineConnection:
        loop = asyncio.get_running_loop()
        transport, made = await loop.create_connection(
            EngineConnection, at.host, at.port, ssl=tls_context() if at.tls else None
        )
        watch_peer(transport.get_extra_info("socket"), KEEPALIVE)
        self._open[made] = at
        return made

    def _sweep(self) -> None:
        """Closes what has been idle for too long."""
        loop = asyncio.get_running_loop()
        now, before = loop.time(), self._idle
        self._idle = defaultdict(list)
        for at, idle in before.items():
            for connection in idle:
                if connection.idle_until > now:
                    self._idle[at].append(connection)
                else:
                    self._drop(connection)
        self._sweeping = loop.call_later(IDLE_S / _SWEEPS, self._sweep) if self._idle else None

    def _drop(self, connection: EngineConnection) -> None:
        self._open.pop(connection, None)
        connection.close()


class EngineAddress(NamedTuple):
    """Address of an engine."""

    host: str
    port: int
    tls: bool = False


@lru_cache(maxsize=256)
def address_of(url: str) -> EngineAddress:
    """Address of a URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    tls = parts.scheme == "https"
    return EngineAddress(parts.hostname, parts.port or (443 if tls else 80), tls)


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    """Verifies certificates by the authorities that this machine knows (`SSL_CERT_FILE` adds to them)."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context

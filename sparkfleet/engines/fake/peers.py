"""Ranks of one fake engine over TCP: each token is a message from rank 0 to every other rank and back, as an all-reduce is.

So a group of fake engines behaves as a real one does: it talks over the network that its ranks meet on, stands still while
that is cut, and dies with any of its ranks.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

STEP_BYTES = 4096
"""Of one message: as much as the all-reduces of one token of a small model."""
AGAIN_S = 0.1
"""Between two tries of a rank to reach rank 0, which may be started later."""


class _Peer(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Leader:
    """Rank 0's side.

    Args:
        others: how many ranks there are but this one.
    """

    def __init__(self, others: int) -> None:
        self._others = others
        self._peers: list[_Peer] = []
        self._whole = asyncio.Event()
        self._turn = asyncio.Lock()

    async def meet(self, host: str, port: int) -> None:
        """Listen, and return when every other rank has come."""
        server = await asyncio.start_server(self._welcome, host, port)
        await self._whole.wait()
        server.close()

    async def step(self) -> None:
        """One message to every rank and back. Raises OSError or EOFError: a rank is gone."""
        async with self._turn:
            await asyncio.gather(*(_echoed(peer) for peer in self._peers))

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._peers.append(_Peer(reader, writer))
        if len(self._peers) == self._others:
            self._whole.set()


async def follow(host: str, port: int) -> None:
    """Any other rank's side: send back what rank 0 sends; return when that is gone."""
    reader, writer = await _reach(host, port)
    try:
        while True:
            writer.write(await reader.readexactly(STEP_BYTES))
            await writer.drain()
    except (OSError, EOFError):
        writer.close()


async def _echoed(peer: _Peer) -> None:
    peer.writer.write(bytes(STEP_BYTES))
    await peer.writer.drain()
    await peer.reader.readexactly(STEP_BYTES)


async def _reach(host: str, port: int) -> _Peer:
    while True:
        try:
            return _Peer(*await asyncio.open_connection(host, port))
        except OSError:
            await asyncio.sleep(AGAIN_S)

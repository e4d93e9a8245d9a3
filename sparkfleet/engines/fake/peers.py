"""Ranks of one fake engine over TCP: each token is a message from rank 0 to every other rank and back, as an all-reduce is.

A group of fake engines therefore behaves as a real one: it sends over the network between its ranks, hangs while that is
down, and dies with any of its ranks.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

STEP_BYTES = 4096
"""Bytes of one message: about the all-reduces of one token of a small model."""
AGAIN_S = 0.1
"""Seconds between two tries of a rank to reach rank 0, which may start later."""


class _Peer(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Leader:
    """Rank 0's side.

    Args:
        others: number of the other ranks.
    """

    def __init__(self, others: int) -> None:
        self._others = others
        self._peers: list[_Peer] = []
        self._whole = asyncio.Event()
        self._turn = asyncio.Lock()

    async def meet(self, host: str, port: int) -> None:
        """Listens, and returns when every other rank has connected."""
        server = await asyncio.start_server(self._welcome, host, port)
        await self._whole.wait()
        server.close()

    async def step(self) -> None:
        """Sends one message to every rank and reads it back. Raises OSError or EOFError if a rank is gone."""
        async with self._turn:
            await asyncio.gather(*(_echoed(peer) for peer in self._peers))

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._peers.append(_Peer(reader, writer))
        if len(self._peers) == self._others:
            self._whole.set()


async def follow(host: str, port: int) -> None:
    """Any other rank's side: sends every message back to rank 0; returns when rank 0 is gone."""
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

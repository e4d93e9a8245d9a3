"""A client that sends bytes to an HTTP server of the gateway, and reads until the server ends the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sparkfleet.gateway.asgi import Receive, Scope, Send, respond
from sparkfleet.gateway.http.http_server import Server

Start = Callable[..., Awaitable[Server]]


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with the path."""
    await respond(send, 200, [], scope["path"].encode())


async def exchange(server: Server, sent: bytes) -> bytes:
    """Sends, and reads until the server closes the connection."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(sent)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return answer


async def answers(server: Server, sent: bytes) -> list[bytes]:
    """Bodies of the answers to what is sent at once."""
    parts = (await exchange(server, sent)).split(b"\r\n\r\n")[1:]
    return [part.partition(b"HTTP/1.1")[0] for part in parts]

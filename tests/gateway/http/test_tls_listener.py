"""Connections with TLS: they count before their handshake, which has a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import uvloop
from raw_client import Start

from sparkfleet.gateway.access.certificates import CertificateStore
from sparkfleet.gateway.asgi import Receive, Scope, Send, respond
from sparkfleet.gateway.http import tls_listener
from sparkfleet.gateway.http.http_server import Server, serve
from sparkfleet.gateway.http.server_socket import Connections
from sparkfleet.gateway.http.tls_listener import TlsListener
from sparkfleet.gateway.listening import GatewayTls

GET = b"GET /a HTTP/1.1\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CertificateStore:
    return CertificateStore(GatewayTls(), tmp_path_factory.mktemp("tls"), b"5" * 64)


async def side(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, 200, [], b"%b to %b" % (scope["scheme"].encode(), scope["client"][0].encode()))


async def ask(server: Server, store: CertificateStore) -> bytes:
    trust = ssl.create_default_context(cadata=store.present.authority)
    reader, writer = await asyncio.open_connection(server.host, server.port, ssl=trust)
    writer.write(GET)
    async with asyncio.timeout(5):
        found = await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return found


def counted(server: Server) -> int:
    return server._server._protocol.open._of.total()


async def silent_clients(store: CertificateStore) -> None:
    """Of four connections one address may have two, also if they begin no handshake; those end in time."""
    server = await serve(side, "127.0.0.1", 0, tls=store.context, connections=4, head_s=0.5)
    held = [await asyncio.open_connection(server.host, server.port) for _ in range(2)]
    third, writer = await asyncio.open_connection(server.host, server.port)
    held[0][1].write(b"\x16\x03\x01\x02")  # the beginning of a handshake
    async with asyncio.timeout(5):
        assert await third.read() == b""
        assert counted(server) == 2
        for silent, _ in held:
            assert await silent.read() == b""
        while counted(server):
            await asyncio.sleep(0.01)
    assert (await ask(server, store)).endswith(b"https to 127.0.0.1")
    for _, one in (*held, (third, writer)):
        one.close()
    await server.aclose()


async def talkative_clients(store: CertificateStore) -> None:
    """Many handshakes at once and one after the other: no request that comes with one is lost, and each ends its count."""
    server = await serve(side, "127.0.0.1", 0, tls=store.context)
    for sent in (b"", b"\x16\x03\x01\x02", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection((server.host, server.port)) as client:
            client.sendall(sent)
    for _ in range(10):
        for found in await asyncio.gather(*(ask(server, store) for _ in range(4))):
            assert found.endswith(b"https to 127.0.0.1")
    async with asyncio.timeout(5):
        while counted(server):
            await asyncio.sleep(0.01)
    await server.aclose()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("clients", [silent_clients, talkative_clients])
def test_clients_with_tls(
    run: Callable[..., None], clients: Callable[..., Coroutine[None, None, None]], store: CertificateStore
) -> None:
    run(clients(store))


async def test_closing_ends_handshakes(start: Start, store: CertificateStore) -> None:
    server = await start(tls=store.context)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    async with asyncio.timeout(5):
        while not counted(server):
            await asyncio.sleep(0.01)
        server.stop_accepting()
        assert counted(server) == 1
        await server.aclose()
        assert await reader.read() == b""
    assert counted(server) == 0
    writer.close()


async def test_without_a_file_it_pauses(
    store: CertificateStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(socket.socket):
        tried = 0

        def accept(self) -> tuple[socket.socket, object]:
            Full.tried += 1
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(tls_listener, "PAUSE_S", 0.05)
    listener = Full(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.setblocking(False)
    opened = Connections(4)
    made = TlsListener(
        listener,
        lambda: pytest.fail("none was accepted"),
        opened=opened,
        context=store.context,
        handshake_s=1,
    )
    with socket.create_connection(listener.getsockname()), caplog.at_level(logging.ERROR):
        async with asyncio.timeout(5):
            while Full.tried < 2:
                await asyncio.sleep(0.01)
    assert "Too many open files" in caplog.text
    made.abort()


async def test_a_new_certificate_is_used_by_the_next_handshake(start: Start, tmp_path: Path) -> None:
    store = CertificateStore(GatewayTls(), tmp_path, b"5" * 64)
    server = await start(side, tls=store.context)
    before = store.present.sha256
    assert (await ask(server, store)).endswith(b"https to 127.0.0.1")
    (tmp_path / "endpoint.pem").unlink()
    store.refresh()
    assert store.present.sha256 != before
    trust = ssl.create_default_context(cadata=store.present.authority)
    _, writer = await asyncio.open_connection(server.host, server.port, ssl=trust)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert ssl.DER_cert_to_PEM_cert(shown) in (tmp_path / "endpoint.pem").read_text()
    writer.close()

"""An entry on real sockets: every byte, each end of a stream, and what it does if no gateway accepts."""

import asyncio
import contextlib
import json
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from sparkfleet.controlplane.state.head_address import name_on_network
from sparkfleet.errors import ControlError
from sparkfleet.gateway import entry as entry_module
from sparkfleet.gateway.entry import MOST, EntryServer
from sparkfleet.gateway.http import server_socket
from sparkfleet.gateway.http.server_socket import ADDRESS_SHARE, CONNECTIONS
from sparkfleet.gateway.listening import EntryOrder

HOST = "127.0.0.1"
Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Answer = Callable[[Reader, Writer], Awaitable[None]]


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


class Ways:
    """A gateway that is a function, and an entry in front of it."""

    def __init__(self) -> None:
        self.entries: list[EntryServer] = []
        self.gateways: list[asyncio.Server] = []

    async def gateway(self, answer: Answer, port: int = 0) -> int:
        async def served(reader: Reader, writer: Writer) -> None:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await answer(reader, writer)

        self.gateways.append(await asyncio.start_server(served, HOST, port, backlog=2048))
        return int(self.gateways[-1].sockets[0].getsockname()[1])

    async def entry(self, target_port: int, *, tls: bool = False, **limits: float) -> tuple[EntryServer, int]:
        one = EntryServer(**limits)  # type: ignore[arg-type]
        self.entries.append(one)
        port = free_port()
        await one.listen(order(port, target_port, tls=tls))
        return one, port

    async def aclose(self) -> None:
        for one in self.entries:
            one.close()
        for gateway in self.gateways:
            gateway.close()
        await asyncio.sleep(0.05)


def order(
    port: int, target_port: int, *, host: str = HOST, target: str = HOST, tls: bool = False
) -> EntryOrder:
    return EntryOrder(host=host, port=port, target=target, target_port=target_port, tls=tls)


@pytest.fixture
async def ways() -> AsyncIterator[Ways]:
    made = Ways()
    yield made
    await made.aclose()


async def echo(reader: Reader, writer: Writer) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_every_byte_passes_both_ways_and_both_ends_are_passed_on(ways: Ways) -> None:
    """The client ends its half first, and gets all of an answer that begins after that."""

    async def answer(reader: Reader, writer: Writer) -> None:
        whole = await reader.read()
        writer.write(whole[::-1])
        writer.close()

    entry, port = await ways.entry(await ways.gateway(answer))
    sent = bytes(range(256)) * 20_000
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(sent)
    writer.write_eof()
    async with asyncio.timeout(20):
        assert await reader.read() == sent[::-1]
    writer.close()
    await until(lambda: not entry.clients)


async def test_a_client_that_closes_closes_at_the_gateway_at_once(ways: Ways) -> None:
    """So the gateway ends the generation."""
    gone = asyncio.Event()

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.read()
        gone.set()
        writer.close()

    _, port = await ways.entry(await ways.gateway(answer))
    _, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"POST")
    await writer.drain()
    writer.close()
    async with asyncio.timeout(5):
        await gone.wait()


async def test_an_answer_that_is_cut_is_cut_for_the_client_too(ways: Ways) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        writer.write(b"half")
        await writer.drain()
        await reader.read(4)
        writer.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )
        writer.transport.abort()

    _, port = await ways.entry(await ways.gateway(answer))
    reader, writer = await asyncio.open_connection(HOST, port)
    assert await reader.readexactly(4) == b"half"
    writer.write(b"more")
    with pytest.raises(ConnectionResetError):
        async with asyncio.timeout(5):
            await reader.read()
    writer.close()


async def test_a_thousand_connections_at_once(ways: Ways) -> None:
    entry, port = await ways.entry(await ways.gateway(echo), most=2048)

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        for part in range(3):
            writer.write(f"{number:05d}/{part}".encode())
            assert await reader.readexactly(7) == f"{number:05d}/{part}".encode()
        await ready.wait()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    ready = asyncio.Event()
    asking = [asyncio.create_task(one(number)) for number in range(1000)]
    await until(lambda: len(entry.clients) == 1000, 60)
    ready.set()
    await asyncio.gather(*asking)
    await until(lambda: not entry.clients)


@pytest.mark.parametrize("towards", ["client", "gateway"])
async def test_a_reader_that_does_not_read_stops_the_sender_in_bounded_memory(
    ways: Ways, towards: str
) -> None:
    amount, sent = 64 << 20, 0
    block = bytes(1 << 16)

    async def pour(writer: Writer) -> None:
        nonlocal sent
        while sent < amount:
            writer.write(block)
            await writer.drain()
            sent += len(block)
        writer.close()

    reads = asyncio.Event()

    async def answer(reader: Reader, writer: Writer) -> None:
        if towards == "client":
            await pour(writer)
        else:
            await reads.wait()
            received.append(await drained(reader))
            writer.close()

    async def drained(reader: Reader) -> int:
        total = 0
        while data := await reader.read(1 << 20):
            total += len(data)
        return total

    received: list[int] = []
    _, port = await ways.entry(await ways.gateway(answer))
    reader, writer = await asyncio.open_connection(HOST, port)
    tracemalloc.start()
    try:
        pouring = asyncio.create_task(pour(writer)) if towards == "gateway" else None
        before = -1
        while sent != before:  # until it stands
            before = sent
            await asyncio.sleep(0.5)
        assert 0 < sent < amount / 2
        assert tracemalloc.get_traced_memory()[1] < 8 << 20, "of which the kernel's buffers are no part"
    finally:
        tracemalloc.stop()
    reads.set()
    if pouring is None:
        received.append(await drained(reader))
        writer.close()
    else:
        await pouring
        await until(lambda: received)
    assert received == [amount]


async def test_a_client_waits_for_a_gateway_that_is_away_and_comes_back(ways: Ways) -> None:
    later = free_port()
    _, port = await ways.entry(later)
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"held")
    await asyncio.sleep(0.6)
    await ways.gateway(echo, later)
    async with asyncio.timeout(5):
        assert await reader.readexactly(4) == b"held"
    writer.close()


async def test_a_gateway_that_stays_away_is_an_honest_answer(ways: Ways) -> None:
    entry, port = await ways.entry(free_port(), hold_s=0.3)
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"http://{HOST}:{port}/v1/chat/completions", content=bytes(1 << 20))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["code"] == "gateway_away"
    words = await entry.trouble()
    assert words.startswith(f"it does not reach the gateway at {HOST} port ")
    assert words.endswith("Connection refused.")
    await until(lambda: not entry.clients)


async def test_with_tls_a_refusal_is_the_end_of_the_connection(ways: Ways) -> None:
    _, port = await ways.entry(free_port(), tls=True, hold_s=0.1)
    reader, writer = await asyncio.open_connection(HOST, port)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_a_refused_client_that_does_not_close_is_closed(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_module, "LINGER_S", 0.2)
    entry, port = await ways.entry(free_port(), hold_s=0.1)
    reader, writer = await asyncio.open_connection(HOST, port)
    async with asyncio.timeout(5):
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
    await until(lambda: not entry.clients)
    writer.close()


async def test_a_client_that_says_nothing_goes_with_the_gateways_end(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway ends an idle connection; the entry kept its client's for ever, and 2,048 of them kept all others out."""
    monkeypatch.setattr(entry_module, "LINGER_S", 0.2)

    async def hang_up(reader: Reader, writer: Writer) -> None:
        writer.close()

    entry, port = await ways.entry(await ways.gateway(hang_up))
    _, writer = await asyncio.open_connection(HOST, port)
    await until(lambda: entry.clients)
    await until(lambda: not entry.clients, seconds=3)
    writer.close()


async def test_a_client_that_takes_nothing_is_ended(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_socket, "STALLED_MS", 1000)

    async def pour(reader: Reader, writer: Writer) -> None:
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()

    entry, port = await ways.entry(await ways.gateway(pour))
    with socket.create_connection((HOST, port)):
        await until(lambda: entry.clients)
        await until(lambda: not entry.clients, seconds=20)


async def test_one_client_leaves_room_for_others_and_a_full_entry_refuses(ways: Ways) -> None:
    entry, port = await ways.entry(await ways.gateway(echo), most=4)
    held = [await asyncio.open_connection(HOST, port) for _ in range(2)]
    for reader, writer in held:
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
    reader, writer = await asyncio.open_connection(HOST, port)
    async with asyncio.timeout(5):
        refused = await reader.read()
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"too_many_connections" in refused
    writer.close()
    held[0][1].close()
    await until(lambda: len(entry.clients) == 1)
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"y")
    async with asyncio.timeout(5):
        assert await reader.readexactly(1) == b"y"
    writer.close()
    held[1][1].close()


def test_an_entry_takes_as_many_as_the_gateway_takes_from_one_address() -> None:
    assert MOST == CONNECTIONS * ADDRESS_SHARE


async def test_a_change_of_its_address_or_the_gateways_leaves_open_connections(ways: Ways) -> None:
    async def other(reader: Reader, writer: Writer) -> None:
        writer.write(b"other")
        writer.close()

    target = await ways.gateway(echo)
    entry, port = await ways.entry(target)
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"1")
    assert await reader.readexactly(1) == b"1"

    moved = await ways.gateway(other)
    await entry.listen(order(port, moved))
    again, second = await asyncio.open_connection(HOST, port)
    async with asyncio.timeout(5):
        assert await again.read() == b"other"
    second.close()

    elsewhere = free_port()
    await entry.listen(order(elsewhere, moved))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HOST, port)
    await entry.listen(None)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HOST, elsewhere)
    writer.write(b"2")
    async with asyncio.timeout(5):
        assert await reader.readexactly(1) == b"2", "the stream goes on"
    writer.close()


async def test_a_port_that_another_program_has_is_an_error_until_it_is_free(ways: Ways) -> None:
    """Also if that program would share it: half of the connections would be its own."""
    entry = EntryServer()
    ways.entries.append(entry)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind((HOST, 0))
        taken.listen()
        wanted = order(taken.getsockname()[1], await ways.gateway(echo))
        with pytest.raises(ControlError, match="cannot listen"):
            await entry.listen(wanted)
        assert entry.order is None
    await entry.listen(wanted)
    assert await entry.trouble() == ""
    with socket.socket() as gateway:  # that starts here when the head moves to this node
        gateway.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        gateway.bind((HOST, wanted.port))


async def test_a_gateway_that_does_not_answer_is_tried_for_a_limited_time(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_module, "CONNECT_S", 0.2)
    with socket.socket() as full:  # a backlog that is full: the kernel answers no further connection
        full.bind((HOST, 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        entry, port = await ways.entry(full.getsockname()[1], hold_s=0.3)
        assert (await entry.trouble()).endswith(": no answer.")
        began = time.monotonic()
        reader, writer = await asyncio.open_connection(HOST, port)
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        assert time.monotonic() - began < 3
        writer.close()
        for one in waiting:
            one.close()


async def test_a_client_on_loopback_of_the_node_does_not_look_like_loopback_of_the_head(ways: Ways) -> None:
    """The page trusts loopback: the gateway has to see the node's address."""

    async def whence(reader: Reader, writer: Writer) -> None:
        writer.write(json.dumps(writer.get_extra_info("peername")[0]).encode())
        writer.close()

    network = name_on_network()
    assert not network.startswith("127."), "this machine has a network"
    gateway = await asyncio.start_server(whence, "0.0.0.0", 0)
    ways.gateways.append(gateway)
    entry = EntryServer()
    ways.entries.append(entry)
    port = free_port()
    await entry.listen(order(port, gateway.sockets[0].getsockname()[1], target=network))
    reader, writer = await asyncio.open_connection(HOST, port)
    async with asyncio.timeout(5):
        assert json.loads(await reader.read()) == network
    writer.close()


async def test_an_attempt_that_succeeds_too_late_does_not_end_the_client(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy loop accepts and gives up in one step: the client belongs to the next attempt."""
    attempts = []
    connect = entry_module._connect

    async def late(*arguments: object) -> object:
        made = await connect(*arguments)  # type: ignore[arg-type]  # passed on as they are
        attempts.append(made)
        if len(attempts) == 1:
            made[0].close()
            raise TimeoutError
        return made

    monkeypatch.setattr(entry_module, "_connect", late)
    _, port = await ways.entry(await ways.gateway(echo))
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"late")
    async with asyncio.timeout(5):
        assert await reader.readexactly(4) == b"late"
    assert len(attempts) == 2
    writer.close()

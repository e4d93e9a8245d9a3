"""Loads a rail with TCP, or measures the latency of a small message. Sent to nodes by `remote/agent.py`; stdlib only.

The request's `do` is one of these; both ends exchange `token` first, so that no other program can connect:

    listen    address, seconds                             prints `listening` with its `port`, serves for at most `seconds`
    bulk      own, peer, port, netdev, seconds, streams    the result is {"bytes", "seconds"}
    latency   own, peer, port, netdev, rounds              the result is {"latency_us"}: half of the median round trip
"""

from __future__ import annotations

import hmac
import socket
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CHUNK = bytes(1 << 20)
MESSAGE = bytes(64)
ACK = 8
PATIENCE_S = 10.0


def main(request: dict[str, Any], emit: Callable[..., None]) -> dict[str, float] | None:
    """Carries out the request."""
    token = request["token"].encode()
    if request["do"] == "listen":
        listen(token, request["address"], request["seconds"], emit)
        return None
    where = request["own"], request["netdev"], (request["peer"], request["port"])
    if request["do"] == "bulk":
        return bulk([reach(*where, token + b"B") for _ in range(request["streams"])], request["seconds"])
    return latency(reach(*where, token + b"L"), request["rounds"])


def listen(token: bytes, address: str, seconds: float, emit: Callable[..., None]) -> None:
    """Serves connections on a free port of `address` until the time is over."""
    end = time.monotonic() + seconds
    with socket.create_server((address, 0), backlog=64) as server:
        emit("listening", port=server.getsockname()[1])
        while (left := end - time.monotonic()) > 0:
            server.settimeout(left)
            with suppress(TimeoutError):
                connection, _ = server.accept()
                threading.Thread(target=serve, args=(connection, token, left), daemon=True).start()


def serve(connection: socket.socket, token: bytes, seconds: float) -> None:
    """Serves one connection: bytes are counted (B) or sent back (L)."""
    with connection, suppress(OSError):
        connection.settimeout(seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = exactly(connection, len(token) + 1)
        if not hmac.compare_digest(received[:-1], token):
            return
        if received[-1:] == b"B":
            connection.sendall(drain(connection).to_bytes(ACK, "big"))
        else:
            while message := connection.recv(len(MESSAGE)):
                connection.sendall(message)


def drain(connection: socket.socket) -> int:
    """Counts the bytes until the other end closes."""
    buffer, count = bytearray(len(CHUNK)), 0
    while size := connection.recv_into(buffer):
        count += size
    return count


def exactly(connection: socket.socket, size: int) -> bytes:
    """Reads exactly `size` bytes. Raises ConnectionError if the other end closes before."""
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise ConnectionError("the other end closed")
        found += more
    return found


def reach(own: str, netdev: str, peer: tuple[str, int], hello: bytes) -> socket.socket:
    """A connection over the rail: from its address and, if the kernel allows it, bound to its netdev."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, netdev.encode())
    connection.settimeout(PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.bind((own, 0))
    connection.connect(peer)
    connection.sendall(hello)
    return connection


def bulk(connections: list[socket.socket], seconds: float) -> dict[str, float]:
    """Sends on all connections for `seconds`; counts the bytes that arrived."""
    counts: list[int] = []
    began = time.monotonic()
    threads = [threading.Thread(target=send, args=(one, began + seconds, counts)) for one in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(counts) != len(connections):
        raise ConnectionError("a stream broke off")
    return {"bytes": sum(counts), "seconds": time.monotonic() - began}


def send(connection: socket.socket, end: float, counts: list[int]) -> None:
    """Sends one stream."""
    with connection, suppress(OSError):
        while time.monotonic() < end:
            connection.sendall(CHUNK)
        connection.shutdown(socket.SHUT_WR)
        counts.append(int.from_bytes(exactly(connection, ACK), "big"))


def latency(connection: socket.socket, rounds: int) -> dict[str, float]:
    """Half of the median round trip of a small message, microseconds. The first tenth is warm-up."""
    times = []
    with connection:
        for _ in range(rounds + rounds // 10):
            began = time.perf_counter_ns()
            connection.sendall(MESSAGE)
            exactly(connection, len(MESSAGE))
            times.append(time.perf_counter_ns() - began)
    return {"latency_us": statistics.median(times[rounds // 10 :]) / 2000}

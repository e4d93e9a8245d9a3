"""The HTTP client that huggingface_hub uses here: bounded answers, bounded waits, and a token for one origin only."""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx2
from huggingface_hub import constants, set_client_factory
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars, logging

from sparkfleet.checkpoints.io.hub_cache import is_offline
from sparkfleet.staging.connection_variables import check_hub_address
from sparkfleet.staging.errors import StagingError
from sparkfleet.values import Value

ANSWER_BYTES = 32 << 20
"""Longest answer of the Hub's API. A page of a file list has 1000 entries of about 300 bytes."""
PUBLIC_HOSTS = ("huggingface.co", "hf.co")
LONGEST_WAIT_S = 300.0
"""Longest Retry-After that is obeyed; a longer one is an error with that number."""


class HttpTimeouts(Value):
    """Longest waits in seconds: for a connection, for the next bytes, and for a whole answer that is not a download.

    The library's own limits apply if they are shorter.
    """

    connect_s: float = 15.0
    read_s: float = 60.0
    answer_s: float = 600.0


def use_bounded_client(endpoint: str, timeouts: HttpTimeouts) -> None:
    """Gives huggingface_hub, in this process, a client for `endpoint`, and silences its progress bars and warnings."""
    disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    set_client_factory(partial(_client, endpoint, timeouts))


def checked_endpoint(endpoint: str) -> str:
    """`endpoint`, or HF_ENDPOINT, or the public Hub, without a slash at its end. Raises ConnectionVariableError."""
    given = endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    check_hub_address(given)
    return given.rstrip("/")


def is_public_hub(endpoint: str) -> bool:
    """True for huggingface.co: any other endpoint is a mirror, or a Hub of one's own."""
    return urlsplit(endpoint).hostname in PUBLIC_HOSTS


def keeps_secrets(address: str) -> bool:
    """True if nobody on the network can read what is sent to `address`: it is https, or on this machine."""
    parts = urlsplit(address)
    try:
        own = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        own = False
    return parts.scheme == "https" or own


def _client(endpoint: str, timeouts: HttpTimeouts) -> httpx2.Client:
    guard = _Guard(urlsplit(endpoint), timeouts)
    hooks: dict[str, list[Callable[..., Any]]] = {"request": [guard.before], "response": [guard.after]}
    return httpx2.Client(event_hooks=hooks, follow_redirects=True, max_redirects=5, timeout=None)


class _Guard:
    """Bounds of every request and answer. Redirects and next pages pass through it too.

    Args:
        endpoint: of the Hub, as the user configured it: the only origin that receives the token.
        timeouts: longest waits.
    """

    def __init__(self, endpoint: SplitResult, timeouts: HttpTimeouts) -> None:
        self._endpoint = endpoint
        self._timeouts = timeouts

    def before(self, request: httpx2.Request) -> None:
        """Removes the token for other origins and without https, and bounds the waits. Raises OfflineModeIsEnabled."""
        if is_offline(os.environ):
            raise OfflineModeIsEnabled(f"no request to {request.url.host}: HF_HUB_OFFLINE is set.")
        if not self._is_ours(request.url) or not keeps_secrets(str(request.url)):
            request.headers.pop("authorization", None)
        # Ranges count the file's own bytes, and a small compressed answer can unpack to a huge one.
        request.headers["accept-encoding"] = "identity"
        given = request.extensions.get("timeout", {})
        request.extensions = {
            **request.extensions,
            "timeout": {
                "connect": min(given.get("connect") or self._timeouts.connect_s, self._timeouts.connect_s),
                "read": min(given.get("read") or self._timeouts.read_s, self._timeouts.read_s),
                "write": self._timeouts.read_s,
                "pool": None,  # streams wait for one another
            },
        }

    def after(self, response: httpx2.Response) -> None:
        """Bounds the size of an answer, and the wait that it may impose. Raises StagingError."""
        wait = response.headers.get("retry-after", "")
        if response.is_error and wait.isascii() and wait.isdigit() and float(wait[:9]) > LONGEST_WAIT_S:
            raise StagingError(
                f"{response.url.host} accepts the next request in {int(wait[:9])} s only.",
                means="The rate limit of this address or token is used up; downloaded bytes are kept.",
                do="Run it again later, or run `hf auth login`: the limit with a token is higher.",
            )
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise odd_answer(
                str(response.url.host), "sent a compressed answer to a request that excludes compression"
            )
        is_api = response.url.path.startswith(f"{self._endpoint.path}/api/")
        if is_api or response.status_code not in (200, 206):
            response.stream = _Bounded(response, self._timeouts.answer_s)

    def _is_ours(self, url: httpx2.URL) -> bool:
        """True if `url` is at the configured endpoint, or at the same host by https."""
        ours = self._endpoint
        ports = {"http": 80, "https": 443}
        port, own = url.port or ports.get(url.scheme), ours.port or ports[ours.scheme]
        if url.host != ours.hostname:
            return False
        return (url.scheme, port) in ((ours.scheme, own), ("https", 443 if own == 80 else own))


class _Bounded(httpx2.SyncByteStream):
    """The body of an answer, up to `ANSWER_BYTES` and a time."""

    def __init__(self, response: httpx2.Response, limit_s: float) -> None:
        self._end_s = time.monotonic() + limit_s
        self._host = str(response.url.host)
        self._stream = response.stream

    def __iter__(self) -> Iterator[bytes]:
        left = ANSWER_BYTES
        assert isinstance(self._stream, httpx2.SyncByteStream)
        for chunk in self._stream:
            left -= len(chunk)
            if time.monotonic() > self._end_s:
                raise httpx2.ReadTimeout(f"{self._host} did not end its answer in time")
            if left < 0:
                raise odd_answer(self._host, f"sends more than {ANSWER_BYTES >> 20} MiB in one answer")
            yield chunk

    def close(self) -> None:
        """Closes the connection's stream."""
        assert isinstance(self._stream, httpx2.SyncByteStream)
        self._stream.close()


def odd_answer(host: str, what: str) -> StagingError:
    """The error for a server whose answers do not follow the Hub's API."""
    return StagingError(
        f"{host} {what}.",
        means="The answer does not follow the Hub's API.",
        do="Check HF_ENDPOINT, and whether a proxy is between this node and the Hub.",
    )

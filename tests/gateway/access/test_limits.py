import asyncio
from collections.abc import Callable, Iterable

import pytest

from sparkfleet.gateway.access.limits import RequestLimits, check_headers, check_target, read_body
from sparkfleet.gateway.asgi import ClientGone, Headers, Message, Receive
from sparkfleet.gateway.body.body_budget import BodyBudget, HeldBody
from sparkfleet.gateway.errors.api_error import ApiError

SMALL = RequestLimits(body_bytes=10, body_s=0.05, header_count=3, header_bytes=200)


def sending(*chunks: bytes, ends: bool = True) -> Receive:
    """A client that sends `chunks`, and then either ends the body or sends no more."""
    messages: Iterable[Message] = iter(
        {"type": "http.request", "body": chunk, "more_body": not ends or i < len(chunks) - 1}
        for i, chunk in enumerate(chunks)
    )

    async def receive() -> Message:
        for message in messages:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    return receive


def held() -> HeldBody:
    return HeldBody(BodyBudget(), "key-1")


async def never() -> Message:
    raise AssertionError("nothing should be read")


@pytest.mark.parametrize("chunks", [(b"",), (b"0123456789",), (b"01234", b"", b"56789")])
async def test_a_body_is_put_together(chunks: tuple[bytes, ...]) -> None:
    body = await read_body({}, sending(*chunks), SMALL, held())
    assert body.whole() == b"".join(chunks)


class WithBody:
    """A connection with the whole body of its request."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def arrived(self) -> bytes | None:
        return self.body

    def write(self, chunk: bytes) -> bool:
        raise AssertionError

    async def drained(self) -> None: ...

    def watch(self, gone: Callable[[], None]) -> bool:
        raise AssertionError

    def unwatch(self, gone: Callable[[], None]) -> None: ...


async def test_a_body_that_has_arrived_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(asyncio, "timeout")
    budget = BodyBudget()
    body = await read_body({}, never, SMALL, HeldBody(budget, "key-1"), WithBody(b"0123456789"))
    assert (body.whole(), budget.held) == (b"0123456789", 10)


async def test_a_body_that_has_arrived_has_the_same_limit() -> None:
    with pytest.raises(ApiError) as caught:
        await read_body({}, never, SMALL, held(), WithBody(b"0123456789a"))
    assert caught.value.status == 413


@pytest.mark.parametrize("length", [b"11", b"9" * 18, b"9" * 5000])
async def test_a_body_that_says_it_is_too_long_is_not_read(length: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        await read_body({b"content-length": length}, never, SMALL, held())
    assert caught.value.status == 413


async def test_a_body_that_does_not_say_is_refused_where_it_becomes_too_long() -> None:
    sent = []

    async def receive() -> Message:
        sent.append(1)
        return {"type": "http.request", "body": b"0123", "more_body": True}

    with pytest.raises(ApiError) as caught:
        await read_body({}, receive, SMALL, held())
    assert caught.value.status == 413
    assert len(sent) == 3


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"", b"+5", b"5, 5"])
async def test_a_length_that_is_none_is_refused(length: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        await read_body({b"content-length": length}, never, SMALL, held())
    assert caught.value.status == 400


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with pytest.raises(ApiError, match=r"1 bytes of it in 0 s") as caught:
        await read_body({}, sending(b"a", ends=False), SMALL, held())
    assert caught.value.status == 408
    assert (b"connection", b"close") in caught.value.headers


async def test_a_body_that_goes_on_arriving_has_more_time() -> None:
    """One of hundreds of megabytes over a slow uplink ended after the same minute as a short one."""
    chunks = [b"x"] * 8

    async def receive() -> Message:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": chunks.pop(), "more_body": bool(chunks)}

    limits = SMALL.model_copy(update={"body_rate": 1.0})
    assert (await read_body({}, receive, limits, held())).size == 8


async def test_a_client_that_hangs_up_is_gone() -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await read_body({}, receive, SMALL, held())


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ([(b"a", b"b")] * 3, False),
        ([(b"a", b"b")] * 4, True),
        ([(b"a", b"b" * 100)], False),
        ([(b"a", b"b" * 200)], True),
    ],
)
def test_headers_have_limits(headers: Headers, refused: bool) -> None:
    if not refused:
        return check_headers(headers, SMALL)
    with pytest.raises(ApiError) as caught:
        check_headers(headers, SMALL)
    assert caught.value.status == 431
    return None


@pytest.mark.parametrize(
    "path",
    [b"/v1/chat/completions", b"/v1/responses/resp_1-a.b~c:d@e", b"/v1/a", b"/v1/_x", b"/v1/files/a..b"],
)
def test_paths_that_pass(path: bytes) -> None:
    check_target(path, b"a=%20&b=1")


@pytest.mark.parametrize(
    "path",
    [
        b"/v1",
        b"/v1/",
        b"/v1//a",
        b"/v1/a/",
        b"/v1/../metrics",
        b"/v1/./a",
        b"/v1/.hidden",
        b"/v1/a/..",
        b"/v1/%2e%2e/metrics",
        b"/v1/a%2fb",
        b"/v1/a\\b",
        b"/v1/a;b",
        b"/v1/a b",
        b"/v1/a\r\nX: y",
        b"/v1/a\n",
        b"/v1/\xc3\xa9",
        b"/metrics",
        b"/V1/a",
        b"",
    ],
)
def test_paths_that_do_not(path: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        check_target(path, b"")
    assert caught.value.status == 404


@pytest.mark.parametrize("query", [b"a=b c", b"a=\r\nX: y", b"a=\xff", b"\0"])
def test_queries_that_do_not_pass(query: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        check_target(b"/v1/a", query)
    assert caught.value.status == 400

import pytest

from sparkfleet.engines.fake import FakeEngine, InjectedFault
from sparkfleet.gateway.asgi import Headers
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.engine.engine_pool import EngineLost
from sparkfleet.gateway.engine.upstream import EngineRequest, Upstream, request_headers

SECRETS: Headers = [
    (b"authorization", b"Bearer sk-sf-secret"),
    (b"x-api-key", b"sk-sf-secret"),
    (b"api-key", b"sk-sf-secret"),
    (b"cookie", b"session=secret"),
    (b"proxy-authorization", b"Basic secret"),
    (b"forwarded", b"for=10.0.0.1"),
    (b"x-forwarded-for", b"10.0.0.1"),
    (b"x-forwarded-host", b"secret"),
    (b"x-real-ip", b"10.0.0.1"),
    (b"x-conversation-id", b"another client's"),
]
OF_THE_CONNECTION: Headers = [
    (b"host", b"gateway"),
    (b"connection", b"keep-alive, X-Mine"),
    (b"keep-alive", b"5"),
    (b"x-mine", b"1"),
    (b"te", b"trailers"),
    (b"trailer", b"x"),
    (b"transfer-encoding", b"chunked"),
    (b"upgrade", b"h2c"),
    (b"expect", b"100-continue"),
    (b"content-length", b"5"),
    (b"accept-encoding", b"gzip"),
    (b"x-request-id", b"mine"),
    (b"x-sparkfleet-model", b"tiny"),
]
UNPRINTABLE: Headers = [(b"x-title", "Café".encode()), (b"x-bell", b"\x07"), (b"x-split", b"a\r\nX-Evil: 1")]
PLAIN: Headers = [
    (b"content-type", b"application/json; charset=utf-8"),
    (b"accept", b"text/event-stream"),
    (b"user-agent", b"OpenAI/Python"),
    (b"anthropic-version", b"2023-06-01"),
    (b"x-stainless-retry-count", b"0"),
    (b"traceparent", b"00-1-2-01"),
]


@pytest.mark.parametrize(
    "headers", [SECRETS, OF_THE_CONNECTION, UNPRINTABLE], ids=["secret", "connection", "odd"]
)
def test_what_an_engine_does_not_get(headers: Headers) -> None:
    assert request_headers([*headers, *PLAIN]) == request_headers(PLAIN)


def test_what_an_engine_gets_is_unchanged() -> None:
    assert request_headers(PLAIN) == PLAIN


def request(body: bytes = b'{"model": "tiny"}') -> EngineRequest:
    return EngineRequest(
        id="req-1", method="POST", target="/v1/completions", headers=(), body=RequestBody(body)
    )


async def test_an_engine_that_is_not_there_never_had_the_request() -> None:
    async with FakeEngine() as engine:
        target = EngineEndpoint(url=engine.url)
    upstream = Upstream()
    with pytest.raises(EngineLost) as caught:
        await upstream.open(target, request())
    assert caught.value.deliveries == 0
    await upstream.aclose()


async def served(upstream: Upstream, engine: FakeEngine) -> None:
    answer = await upstream.open(EngineEndpoint(url=engine.url), request())
    while await answer.readany():
        pass
    answer.close()


async def test_a_connection_that_the_engine_closed_while_idle_is_no_loss() -> None:
    async with FakeEngine(model="tiny") as engine:
        upstream = Upstream()
        await served(upstream, engine)
        engine.fault = InjectedFault(kind="drop", times=1)
        answer = await upstream.open(EngineEndpoint(url=engine.url), request())
        assert answer.status == 200
        assert (len(engine.requests), answer.deliveries) == (3, 2)
        answer.close()
        await upstream.aclose()


async def test_a_kept_connection_is_the_only_try_if_no_more_are_left() -> None:
    async with FakeEngine(model="tiny") as engine:
        upstream = Upstream()
        await served(upstream, engine)
        engine.fault = InjectedFault(kind="drop", times=1)
        with pytest.raises(EngineLost) as caught:
            await upstream.open(EngineEndpoint(url=engine.url), request(), most=1)
        assert (len(engine.requests), caught.value.deliveries) == (2, 1)
        await upstream.aclose()


async def test_an_engine_that_drops_a_kept_and_a_new_connection_is_lost_and_had_the_request() -> None:
    async with FakeEngine(model="tiny") as engine:
        upstream = Upstream()
        await served(upstream, engine)
        engine.fault = InjectedFault(kind="drop")
        with pytest.raises(EngineLost) as caught:
            await upstream.open(EngineEndpoint(url=engine.url), request())
        assert caught.value.deliveries == 2
        assert len(engine.requests) == 3
        await upstream.aclose()


async def test_an_engine_that_died_of_a_request_on_a_kept_connection_had_it() -> None:
    async with FakeEngine(model="tiny") as engine:
        upstream = Upstream()
        await served(upstream, engine)
        engine.fault = InjectedFault(kind="die")
        with pytest.raises(EngineLost) as caught:
            await upstream.open(EngineEndpoint(url=engine.url), request())
        assert caught.value.deliveries == 1
        await upstream.aclose()


async def test_a_request_that_was_lost_on_a_new_connection_is_not_sent_to_the_same_engine_again() -> None:
    async with FakeEngine(model="tiny", fault=InjectedFault(kind="drop", times=1)) as engine:
        upstream = Upstream()
        with pytest.raises(EngineLost) as caught:
            await upstream.open(EngineEndpoint(url=engine.url), request())
        assert caught.value.deliveries == 1
        assert len(engine.requests) == 1
        await upstream.aclose()


async def test_a_closed_upstream_can_be_closed_again() -> None:
    upstream = Upstream()
    await upstream.aclose()
    await upstream.aclose()

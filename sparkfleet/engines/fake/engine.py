"""The fake engine's server: answers at its pace, counts requests and tokens, and fails on demand."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self
from zlib import crc32

from aiohttp import web
from pydantic import ValidationError

from sparkfleet.engines.fake.apis import APIS, Api, Job
from sparkfleet.engines.fake.pace import InjectedFault, Pace

WORDS = ("the", "spark", "hums", "and", "two", "cables", "carry", "what", "one", "node", "cannot", "hold")

_IDS = {word: place for place, word in enumerate(WORDS)}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


CONTEXT = 4096
"""Upper bound of an answer's tokens."""


class FakeEngine:
    """The engine, listening while it is entered:

        async with FakeEngine(model="tiny", pace=Pace(ttft_s=0.05, itl_s=0.01)) as engine:
            engine.url

    Args:
        model: the served name.
        pace: the times of its answers.
        fault: the injected fault; may be set at any time.
        token: bearer token that it requires; "": none.
        metrics_token: another that is good for `/metrics` alone; "": none.
        die: called for a `die` fault; the default closes all sockets in this process.
        step: awaited before each token, as a rank waits for its peers; the default does not wait.
    """

    def __init__(
        self,
        *,
        model: str = "fake",
        pace: Pace | None = None,
        fault: InjectedFault | None = None,
        token: str = "",
        metrics_token: str = "",
        die: Callable[[], None] | None = None,
        step: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.model = model
        self.pace = pace or Pace()
        self.fault = fault
        self.token = token
        self.metrics_token = metrics_token
        self.requests: list[web.Request] = []
        """Generations that were requested."""
        self.bodies: list[bytes] = []
        """Their bodies."""
        self.running = 0
        self.aborted = 0
        """Generations that were stopped because the client hung up."""
        self.generated = 0
        """Tokens."""
        self.prompted = 0
        """Tokens of prompts."""
        self.finished = 0
        """Generations that reached their end."""
        self.changed = asyncio.Condition()
        """Notified whenever one of the counts above changes."""
        self.shown: dict[str, float] = {}
        """Values of its metrics page that replace or add to the counted ones; may be set at any time."""
        self.url = ""
        self._die = die or self._kill
        self._step = step or _alone
        self._ids = itertools.count()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Starts to listen. Port 0: any free one, see `url`."""
        # A client that hangs up cancels its handler, as a real engine stops its generation.
        runner = web.AppRunner(self._app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        assert runner.server is not None
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(runner.server, host, port, backlog=1024)
        self._runner = runner
        self.url = f"http://{host}:{self._listener.sockets[0].getsockname()[1]}"

    async def aclose(self) -> None:
        """Stop."""
        if self._runner is not None and self._listener is not None:
            self._listener.close()
            await self._runner.cleanup()
            self._runner = None

    async def until(self, condition: Callable[[FakeEngine], bool]) -> None:
        """Waits until the condition holds for the counts."""
        async with self.changed:
            await self.changed.wait_for(lambda: condition(self))

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/health", self._guarded(self._health))
        app.router.add_get("/metrics", self._guarded(self._metrics, self.metrics_token))
        app.router.add_get("/v1/models", self._guarded(self._models))
        app.router.add_post("/v1/embeddings", self._guarded(self._embeddings))
        app.router.add_put("/fake/fault", self._set_fault)
        app.router.add_delete("/fake/fault", self._set_fault)
        app.router.add_put("/fake/metrics", self._set_metrics)
        for path in APIS:
            app.router.add_post(path, self._guarded(self._generate))
        app.router.add_route("*", "/v1/{rest:.*}", self._guarded(self._echo))
        return app

    def _guarded(self, handler: Handler, other: str = "") -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            good = [f"Bearer {token}".encode() for token in (self.token, *other.split()) if token]
            given = request.headers.get("authorization", "").encode()
            if self.token and not any(hmac.compare_digest(given, one) for one in good):
                return web.json_response({"error": "Unauthorized"}, status=401)
            return await handler(request)

        return guarded

    # Answers

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def _metrics(self, _: web.Request) -> web.Response:
        values = {
            "vllm:num_requests_running": self.running,
            "vllm:num_requests_waiting": 0,
            "vllm:generation_tokens_total": self.generated,
            "vllm:prompt_tokens_total": self.prompted,
            "vllm:request_success_total": self.finished,
            "fake:requests_aborted_total": self.aborted,
            **self.shown,
        }
        lines = [f'{name}{{model_name="{self.model}"}} {value}\n' for name, value in values.items()]
        return web.Response(text="".join(lines), content_type="text/plain")

    async def _set_fault(self, request: web.Request) -> web.Response:
        try:
            self.fault = (
                InjectedFault.model_validate_json(await request.read()) if request.method == "PUT" else None
            )
        except ValidationError as error:
            return web.json_response(
                {"error": error.errors(include_url=False, include_input=False)}, status=400
            )
        return web.Response(status=204)

    async def _set_metrics(self, request: web.Request) -> web.Response:
        given = _object(await request.read())
        if not all(isinstance(value, int | float) for value in given.values()):
            return web.json_response({"error": "values are numbers"}, status=400)
        self.shown = given
        return web.Response(status=204)

    async def _echo(self, request: web.Request) -> web.Response:
        """Answers any other path below /v1 with the request's own content."""
        await self._count(request)
        body = {
            "method": request.method,
            "path": request.raw_path,
            "headers": [
                [name.decode("latin-1"), value.decode("latin-1")] for name, value in request.raw_headers
            ],
            "size": len(self.bodies[-1]),
        }
        return web.json_response(body)

    async def _embeddings(self, request: web.Request) -> web.Response:
        body = _object(await self._count(request))
        given = body.get("input", "")
        texts = given if isinstance(given, list) else [given]
        data = [{"object": "embedding", "index": i, "embedding": [1.0, 0.0]} for i in range(len(texts))]
        count = sum(len(str(text).split()) for text in texts)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return web.json_response({"object": "list", "data": data, "model": self.model, "usage": usage})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = _object(await self._count(request))
        if body.get("model") != self.model:
            message = f"The model `{body.get('model')}` does not exist."
            return web.json_response({"error": {"message": message, "code": 404}}, status=404)
        job = self._job(body)
        fault = self._take_fault()
        if fault is not None and fault.kind == "status":
            return web.json_response(
                {"error": {"message": "on demand", "code": fault.status}}, status=fault.status
            )
        if fault is not None and fault.kind == "garble":
            job, fault = replace(job, words=("! ",) * len(job.words)), None
        api = APIS[request.path]
        async with self._running(job):
            if body.get("stream"):
                return await self._stream(request, api, job, fault)
            return await self._answer(request, api, job, fault)

    async def _stream(
        self, request: web.Request, api: Api, job: Job, fault: InjectedFault | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for index, due in self._schedule(job):
            await _sleep_until(due)
            if fault is not None and index == fault.after:
                await self._fail(request, fault)
            await self._step()
            opening = b"".join(api.opening(job)) if index == 0 else b""
            await response.write(opening + api.token(job, index))
            await self._count_token(job, index)
        for event in api.closing(job):
            await response.write(event)
        await response.write_eof()
        return response

    async def _answer(
        self, request: web.Request, api: Api, job: Job, fault: InjectedFault | None
    ) -> web.StreamResponse:
        if fault is not None and not fault.after:
            await self._fail(request, fault)
        for index, due in self._schedule(job):
            await _sleep_until(due)
            await self._step()
            await self._count_token(job, index)
        body = json.dumps(api.whole(job)).encode()
        if fault is not None:
            response = web.StreamResponse(headers={"content-length": str(len(body))})
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
            await self._fail(request, fault)
        return web.Response(body=body, content_type="application/json")

    def _schedule(self, job: Job) -> Iterator[tuple[int, float]]:
        """Due time of each token on the loop's clock: one late token does not delay the others."""
        start = asyncio.get_running_loop().time() + self.pace.ttft_s
        return ((index, start + index * self.pace.itl_s) for index in range(len(job.words)))

    def _job(self, body: Mapping[str, Any]) -> Job:
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or body.get("max_output_tokens")
        count = self.pace.tokens
        if isinstance(limit, int):
            count = min(limit, CONTEXT if body.get("ignore_eos") else count)
        options = body.get("stream_options")
        prompt = _prompt_ids(body)
        begin = _next_word(body, prompt)
        places = [(begin + place) % len(WORDS) for place in range(max(count, 1))]
        return Job(
            id=f"fake-{next(self._ids)}",
            model=self.model,
            prompt_tokens=_prompt_tokens(body),
            words=tuple(WORDS[place] + " " for place in places),
            has_usage=isinstance(options, dict) and options.get("include_usage") is True,
            has_ids=body.get("return_token_ids") is True,
            prompt_ids=tuple(prompt),
            ids=tuple(places),
        )

    # Faults

    def _take_fault(self) -> InjectedFault | None:
        fault = self.fault
        if fault is not None and fault.times is not None:
            left = fault.times - 1
            self.fault = fault.model_copy(update={"times": left}) if left > 0 else None
        return fault

    async def _fail(self, request: web.Request, fault: InjectedFault) -> None:
        if fault.kind == "die":
            self._die()
        elif fault.kind == "drop" and request.transport is not None:
            request.transport.abort()
        await asyncio.Event().wait()  # until the connection is gone

    def _kill(self) -> None:
        """Closes every socket at once without an answer, as a killed process does."""
        if self._runner is None or self._listener is None or self._runner.server is None:
            return
        self._listener.close()
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    # Counters

    async def _count(self, request: web.Request) -> bytes:
        body = await request.read()
        self.requests.append(request)
        self.bodies.append(body)
        await self._tick()
        return body

    @contextlib.asynccontextmanager
    async def _running(self, job: Job) -> AsyncIterator[None]:
        await self._tick(running=1)
        try:
            yield
            await self._tick(finished=1)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        finally:
            await self._tick(running=-1)

    async def _count_token(self, job: Job, index: int) -> None:
        """Counts as vLLM does: the prompt's tokens with the first token of the answer, not before."""
        await self._tick(generated=1, prompted=0 if index else job.prompt_tokens)

    async def _tick(self, **changes: int) -> None:
        for name, change in changes.items():
            setattr(self, name, getattr(self, name) + change)
        async with self.changed:
            self.changed.notify_all()


async def _alone() -> None:
    """Returns at once: a group of one rank has no peers to wait for."""


async def _sleep_until(due: float) -> None:
    await asyncio.sleep(due - asyncio.get_running_loop().time())


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        raise web.HTTPBadRequest(text="not JSON") from None
    if not isinstance(value, dict):
        raise web.HTTPBadRequest(text="not an object")
    return value


def _prompt_tokens(body: Mapping[str, Any]) -> int:
    asked = body.get("messages") or body.get("prompt") or body.get("input") or ""
    texts = [part.get("content", "") if isinstance(part, dict) else part for part in _list(asked)]
    return sum(len(str(text).split()) for text in texts)


def _prompt_ids(body: Mapping[str, Any]) -> list[int]:
    """Ids of a prompt's tokens, one for each word: those of its own words are their places in `WORDS`."""
    asked = body.get("messages") or body.get("prompt") or ""
    texts = [part.get("content", "") if isinstance(part, dict) else part for part in _list(asked)]
    found: list[int] = []
    for text in texts:
        if isinstance(text, int):
            found.append(text)
        else:
            found += [_IDS.get(word, len(WORDS) + crc32(word.encode()) % 1000) for word in str(text).split()]
    return found


def _next_word(body: Mapping[str, Any], prompt: Sequence[int]) -> int:
    """Place of the first word of an answer: that after the last token of a prompt that is an answer's beginning."""
    given = body.get("prompt")
    goes_on = body.get("continue_final_message") is True or (
        isinstance(given, list) and all(isinstance(one, int) for one in given)
    )
    return (prompt[-1] + 1) % len(WORDS) if goes_on and prompt and prompt[-1] < len(WORDS) else 0


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]

"""A fake engine: speaks the OpenAI and Anthropic APIs at a chosen pace, computes nothing, fails on demand.

For tests, for measuring what lies between a client and an engine, for trying sparkfleet without a model:

    python -m sparkfleet.engines.fake --port 8001 --model tiny --ttft-ms 50 --itl-ms 10 --tokens 64

Its words mean nothing, its tokens are words, and its pace is what it was told, whatever the load. Faults are
set with `--fault`, or while it runs with `PUT /fake/fault {"kind": "die", "after": 3}` (`DELETE` lifts it).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from aiohttp import web
from pydantic import ValidationError

from sparkfleet.values import Value

WORDS = ("the", "spark", "hums", "and", "two", "cables", "carry", "what", "one", "node", "cannot", "hold")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pace(Value):
    """How fast it answers. Times in seconds."""

    ttft_s: float = 0.0
    """From the request to the first token."""
    itl_s: float = 0.0
    """Between two tokens."""
    tokens: int = 16
    """Of an answer, where the request does not ask for fewer."""


class Fault(Value):
    """What goes wrong, from now on."""

    kind: Literal["die", "drop", "hang", "status"]
    """`die`: the whole engine is gone at once. `drop`: only this connection is. `hang`: nothing comes any
    more. `status`: an error is answered."""
    after: int = 0
    """Tokens that still come; of an answer that is no stream, the first half, if it is not 0."""
    status: int = 500
    """For `status`."""
    times: int | None = None
    """How many requests it meets; None: all."""


@dataclass(frozen=True, slots=True)
class Job:
    """One generation."""

    id: str
    model: str
    prompt_tokens: int
    words: tuple[str, ...]
    wants_usage: bool

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.words)


class Api(Protocol):
    """How one API shapes an answer. Pure."""

    def whole(self, job: Job) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        ...

    def opening(self, job: Job) -> list[bytes]:
        """Events before the first token."""
        ...

    def token(self, job: Job, index: int) -> bytes:
        """The event of one token."""
        ...

    def closing(self, job: Job) -> list[bytes]:
        """Events after the last token."""
        ...


class ChatApi:
    """`/v1/chat/completions`."""

    def whole(self, job: Job) -> dict[str, Any]:
        """A `chat.completion`."""
        message = {"role": "assistant", "content": job.text}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        return _openai(job, "chat.completion", [choice], usage=True)

    def opening(self, job: Job) -> list[bytes]:
        """The chunk with the role."""
        return [self._chunk(job, {"role": "assistant", "content": ""})]

    def token(self, job: Job, index: int) -> bytes:
        """A chunk with one word."""
        return self._chunk(job, {"content": job.words[index]})

    def closing(self, job: Job) -> list[bytes]:
        """The reason, the usage if it was asked for, and the end."""
        ending = [self._chunk(job, {}, "length")]
        return [*ending, *_openai_end(job, "chat.completion.chunk")]

    def _chunk(self, job: Job, delta: dict[str, str], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return _event(_openai(job, "chat.completion.chunk", [choice]))


class CompletionApi:
    """`/v1/completions`."""

    def whole(self, job: Job) -> dict[str, Any]:
        """A `text_completion`."""
        return _openai(job, "text_completion", [self._choice(job.text, "length")], usage=True)

    def opening(self, job: Job) -> list[bytes]:
        """Nothing comes before the first token."""
        return []

    def token(self, job: Job, index: int) -> bytes:
        """A chunk with one word."""
        reason = "length" if index == len(job.words) - 1 else None
        return _event(_openai(job, "text_completion", [self._choice(job.words[index], reason)]))

    def closing(self, job: Job) -> list[bytes]:
        """The usage if it was asked for, and the end."""
        return _openai_end(job, "text_completion")

    def _choice(self, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}


class MessagesApi:
    """Anthropic's `/v1/messages`."""

    def whole(self, job: Job) -> dict[str, Any]:
        """A `message`."""
        return self._message(job, [{"type": "text", "text": job.text}], "max_tokens", len(job.words))

    def opening(self, job: Job) -> list[bytes]:
        """The empty message, with the tokens of the prompt, and the start of its text."""
        start = {"type": "message_start", "message": self._message(job, [], None, 0)}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return [_named(start), _named(block)]

    def token(self, job: Job, index: int) -> bytes:
        """One word."""
        delta = {"type": "text_delta", "text": job.words[index]}
        return _named({"type": "content_block_delta", "index": 0, "delta": delta})

    def closing(self, job: Job) -> list[bytes]:
        """The end of the text, the reason with the tokens of the answer, the end."""
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        usage = {"output_tokens": len(job.words)}
        return [
            _named({"type": "content_block_stop", "index": 0}),
            _named({"type": "message_delta", "delta": delta, "usage": usage}),
            _named({"type": "message_stop"}),
        ]

    def _message(
        self, job: Job, content: list[dict[str, str]], reason: str | None, output: int
    ) -> dict[str, Any]:
        return {
            "id": job.id,
            "type": "message",
            "role": "assistant",
            "model": job.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {"input_tokens": job.prompt_tokens, "output_tokens": output},
        }


class ResponsesApi:
    """`/v1/responses`, as far as text goes."""

    def whole(self, job: Job) -> dict[str, Any]:
        """A completed `response`."""
        return self._response(job, "completed", [self._item(job)])

    def opening(self, job: Job) -> list[bytes]:
        """The response as it begins."""
        return [_named({"type": "response.created", "response": self._response(job, "in_progress", [])})]

    def token(self, job: Job, index: int) -> bytes:
        """One word."""
        place = {"item_id": f"{job.id}-0", "output_index": 0, "content_index": 0, "sequence_number": index}
        return _named({"type": "response.output_text.delta", "delta": job.words[index], **place})

    def closing(self, job: Job) -> list[bytes]:
        """The whole response."""
        return [_named({"type": "response.completed", "response": self.whole(job)})]

    def _item(self, job: Job) -> dict[str, Any]:
        text = {"type": "output_text", "text": job.text, "annotations": []}
        return {
            "id": f"{job.id}-0",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }

    def _response(self, job: Job, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {
            "input_tokens": job.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": len(job.words),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": job.prompt_tokens + len(job.words),
        }
        return {
            "id": job.id,
            "object": "response",
            "created_at": 0,
            "model": job.model,
            "status": status,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage if output else None,
        }


APIS: Mapping[str, Api] = {
    "/v1/chat/completions": ChatApi(),
    "/v1/completions": CompletionApi(),
    "/v1/messages": MessagesApi(),
    "/v1/responses": ResponsesApi(),
}


def frames(api: Api, job: Job) -> list[bytes]:
    """The events of a stream, in order: all of them, whatever the pace."""
    return [*api.opening(job), *(api.token(job, i) for i in range(len(job.words))), *api.closing(job)]


class FakeEngine:
    """The engine, listening while it is entered:

        async with FakeEngine(model="tiny", pace=Pace(ttft_s=0.05, itl_s=0.01)) as engine:
            engine.url

    Args:
        model: the name it answers to.
        pace: how fast.
        fault: what goes wrong; may be set at any time.
        token: bearer token that it asks for; "": none.
        die: how it dies of a `die` fault; the default closes everything in this process.
    """

    def __init__(
        self,
        *,
        model: str = "fake",
        pace: Pace | None = None,
        fault: Fault | None = None,
        token: str = "",
        die: Callable[[], None] | None = None,
    ) -> None:
        self.model = model
        self.pace = pace or Pace()
        self.fault = fault
        self.token = token
        self.requests: list[web.Request] = []
        """Every generation that was asked for."""
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
        """Generations that came to their end."""
        self.changed = asyncio.Condition()
        """Notified whenever one of the counts above changes."""
        self.url = ""
        self._die = die or self._kill
        self._ids = itertools.count()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Start to listen. Port 0: any free one, see `url`."""
        # A handler that is cancelled when its client hangs up is how an engine learns to stop.
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
        """Wait for something to be true of the counts."""
        async with self.changed:
            await self.changed.wait_for(lambda: condition(self))

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._guarded(self._models))
        app.router.add_post("/v1/embeddings", self._guarded(self._embeddings))
        app.router.add_put("/fake/fault", self._set_fault)
        app.router.add_delete("/fake/fault", self._set_fault)
        for path in APIS:
            app.router.add_post(path, self._guarded(self._generate))
        app.router.add_route("*", "/v1/{rest:.*}", self._guarded(self._echo))
        return app

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("authorization", "")
            if self.token and not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
                return web.json_response({"error": "Unauthorized"}, status=401)
            return await handler(request)

        return guarded

    # What it answers

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
        }
        lines = [f'{name}{{model_name="{self.model}"}} {value}\n' for name, value in values.items()]
        return web.Response(text="".join(lines), content_type="text/plain")

    async def _set_fault(self, request: web.Request) -> web.Response:
        try:
            self.fault = Fault.model_validate_json(await request.read()) if request.method == "PUT" else None
        except ValidationError as error:
            return web.json_response(
                {"error": error.errors(include_url=False, include_input=False)}, status=400
            )
        return web.Response(status=204)

    async def _echo(self, request: web.Request) -> web.Response:
        """Whatever else is asked below /v1: what arrived."""
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
        api = APIS[request.path]
        async with self._running(job):
            if body.get("stream"):
                return await self._stream(request, api, job, fault)
            return await self._answer(request, api, job, fault)

    async def _stream(
        self, request: web.Request, api: Api, job: Job, fault: Fault | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for index, due in self._schedule(job):
            await _sleep_until(due)
            if fault is not None and index == fault.after:
                await self._fail(request, fault)
            opening = b"".join(api.opening(job)) if index == 0 else b""
            await response.write(opening + api.token(job, index))
            await self._tick(generated=1)
        for event in api.closing(job):
            await response.write(event)
        await response.write_eof()
        return response

    async def _answer(
        self, request: web.Request, api: Api, job: Job, fault: Fault | None
    ) -> web.StreamResponse:
        for _, due in self._schedule(job):
            await _sleep_until(due)
            await self._tick(generated=1)
        body = json.dumps(api.whole(job)).encode()
        if fault is not None:
            if fault.after:
                response = web.StreamResponse(headers={"content-length": str(len(body))})
                await response.prepare(request)
                await response.write(body[: len(body) // 2])
            await self._fail(request, fault)
        return web.Response(body=body, content_type="application/json")

    def _schedule(self, job: Job) -> Iterator[tuple[int, float]]:
        """When each token is due, on the loop's clock: one late token does not delay the others."""
        start = asyncio.get_running_loop().time() + self.pace.ttft_s
        return ((index, start + index * self.pace.itl_s) for index in range(len(job.words)))

    def _job(self, body: Mapping[str, Any]) -> Job:
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or body.get("max_output_tokens")
        count = min(self.pace.tokens, limit) if isinstance(limit, int) else self.pace.tokens
        options = body.get("stream_options")
        return Job(
            id=f"fake-{next(self._ids)}",
            model=self.model,
            prompt_tokens=_prompt_tokens(body),
            words=tuple(word + " " for word in itertools.islice(itertools.cycle(WORDS), max(count, 1))),
            wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
        )

    # What goes wrong

    def _take_fault(self) -> Fault | None:
        fault = self.fault
        if fault is not None and fault.times is not None:
            left = fault.times - 1
            self.fault = fault.model_copy(update={"times": left}) if left > 0 else None
        return fault

    async def _fail(self, request: web.Request, fault: Fault) -> None:
        if fault.kind == "die":
            self._die()
        elif fault.kind == "drop" and request.transport is not None:
            request.transport.abort()
        await asyncio.Event().wait()  # until the connection is gone

    def _kill(self) -> None:
        """As if the process were killed: every socket is closed at once, nothing is said."""
        if self._runner is None or self._listener is None or self._runner.server is None:
            return
        self._listener.close()
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    # What is counted

    async def _count(self, request: web.Request) -> bytes:
        body = await request.read()
        self.requests.append(request)
        self.bodies.append(body)
        await self._tick()
        return body

    @contextlib.asynccontextmanager
    async def _running(self, job: Job) -> AsyncIterator[None]:
        await self._tick(running=1, prompted=job.prompt_tokens)
        try:
            yield
            await self._tick(finished=1)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        finally:
            await self._tick(running=-1)

    async def _tick(self, **changes: int) -> None:
        for name, change in changes.items():
            setattr(self, name, getattr(self, name) + change)
        async with self.changed:
            self.changed.notify_all()


async def _sleep_until(due: float) -> None:
    await asyncio.sleep(due - asyncio.get_running_loop().time())


def _openai(job: Job, kind: str, choices: list[dict[str, Any]], *, usage: bool = False) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": job.id,
        "object": kind,
        "created": 0,
        "model": job.model,
        "choices": choices,
    }
    if usage:
        document["usage"] = {
            "prompt_tokens": job.prompt_tokens,
            "completion_tokens": len(job.words),
            "total_tokens": job.prompt_tokens + len(job.words),
        }
    return document


def _openai_end(job: Job, kind: str) -> list[bytes]:
    usage = [_event(_openai(job, kind, [], usage=True))] if job.wants_usage else []
    return [*usage, b"data: [DONE]\n\n"]


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _named(document: dict[str, Any]) -> bytes:
    return b"event: " + str(document["type"]).encode() + b"\n" + _event(document)


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


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


# As a program


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sparkfleet.engines.fake", description="A fake engine.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one, which is printed")
    parser.add_argument("--model", default="fake", help="the name it answers to")
    parser.add_argument("--ttft-ms", type=float, default=0.0, help="to the first token")
    parser.add_argument("--itl-ms", type=float, default=0.0, help="between two tokens")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer")
    parser.add_argument("--token-env", default="", help="variable with the bearer token to ask for")
    parser.add_argument("--fault", type=_fault, metavar="KIND[:AFTER]", help="die, drop, hang or status")
    arguments = parser.parse_args(argv)
    if arguments.token_env and not os.environ.get(arguments.token_env):
        parser.error(f"--token-env: {arguments.token_env} is not set")
    return arguments


def _fault(text: str) -> Fault:
    kind, _, after = text.partition(":")
    try:
        return Fault.model_validate({"kind": kind, "after": int(after or 0)})
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not KIND[:AFTER], with one of die, drop, hang, status"
        ) from None


async def _run(arguments: argparse.Namespace) -> None:
    engine = FakeEngine(
        model=arguments.model,
        pace=Pace(ttft_s=arguments.ttft_ms / 1e3, itl_s=arguments.itl_ms / 1e3, tokens=arguments.tokens),
        fault=arguments.fault,
        token=os.environ.get(arguments.token_env, ""),
        die=lambda: os._exit(1),
    )
    stopped = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    await engine.listen(arguments.host, arguments.port)
    print(f"fake engine {engine.model!r} on {engine.url}", flush=True)
    await stopped.wait()
    await engine.aclose()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit code."""
    arguments = _arguments(argv)
    try:
        asyncio.run(_run(arguments))
    except (OSError, OverflowError) as error:
        print(f"cannot listen on {arguments.host} port {arguments.port}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

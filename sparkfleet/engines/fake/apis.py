"""Response shapes of each API: the whole answer, or the events of a stream. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Job:
    """One generation."""

    id: str
    model: str
    prompt_tokens: int
    words: tuple[str, ...]
    has_usage: bool
    has_ids: bool = False
    """True if the ids of tokens are returned, as vLLM does."""
    prompt_ids: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    """A token's for each word."""

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.words)


class Api(Protocol):
    """Response shape of one API. Pure."""

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
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        document = _openai(job, "chat.completion.chunk", [role])
        if job.has_ids:
            document["prompt_token_ids"] = list(job.prompt_ids)
        return [_event(document)]

    def token(self, job: Job, index: int) -> bytes:
        """A chunk with one word."""
        choice = {"index": 0, "delta": {"content": job.words[index]}, "finish_reason": None}
        if job.has_ids:
            choice["token_ids"] = [job.ids[index]]
        return _event(_openai(job, "chat.completion.chunk", [choice]))

    def closing(self, job: Job) -> list[bytes]:
        """The finish reason, the usage if it was requested, and the end."""
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
        choice = self._choice(job.words[index], reason)
        if job.has_ids:
            choice["prompt_token_ids"] = None if index else list(job.prompt_ids)
            choice["token_ids"] = [job.ids[index]]
        return _event(_openai(job, "text_completion", [choice]))

    def closing(self, job: Job) -> list[bytes]:
        """The usage if it was requested, and the end."""
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
        """The end of the text, the stop reason with the tokens of the answer, and the end."""
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
    """`/v1/responses`, text only."""

    def whole(self, job: Job) -> dict[str, Any]:
        """A completed `response`."""
        return self._response(job, "completed", [self._item(job)])

    def opening(self, job: Job) -> list[bytes]:
        """The response at its start."""
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
            "id": f"resp_{job.id}",
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
    usage = [_event(_openai(job, kind, [], usage=True))] if job.has_usage else []
    return [*usage, b"data: [DONE]\n\n"]


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _named(document: dict[str, Any]) -> bytes:
    return b"event: " + str(document["type"]).encode() + b"\n" + _event(document)

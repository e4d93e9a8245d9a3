"""Continues a greedy stream on another group from the tokens that its client has got, if that is provably the same text.

vLLM returns the ids of an answer's tokens on request (`return_token_ids`; 0.32, `openai/completion/serving.py`), so nothing
is tokenised again: a completion goes on from the ids of its prompt and of the tokens that were sent. A chat cannot be given
ids; it goes on from the sent text (`continue_final_message`), and the ids of the prompt that the engine made of that are
compared: only if they are the same ids is a byte of it passed on. Every doubt ends the stream with the usual error event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.engine.failure_event import is_failure
from sparkfleet.gateway.engine.usage_event import EVENT_END

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
CONTINUATIONS = 2
"""Groups on which one stream is continued, at most."""
RETURN_IDS = b'"return_token_ids":true,'

_PASSED = frozenset(
    (
        "chat_template_kwargs",
        "ignore_eos",
        "logit_bias",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "min_p",
        "model",
        "prompt",
        "repetition_penalty",
        "seed",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "user",
    )
)
"""Fields that mean the same for the rest of an answer as for the whole of it. Penalties of the answer's own tokens, stop
strings, structured output, tools and log probabilities do not."""
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "logprobs": (None, False),
    "min_tokens": (None, 0),
    "n": (None, 1),
    "parallel_tool_calls": (None, True, False),
    "presence_penalty": (None, 0),
    "response_format": (None, {"type": "text"}),
    "stop": (None, [], ""),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
}
"""Further fields, with the values that change nothing."""
_LIMITS = ("max_tokens", "max_completion_tokens")
_IDS = re.compile(rb'"(prompt_token_ids|token_ids)"\s*:\s*\[[^\]]*\]')
_OTHER_TEXT = ("reasoning", "reasoning_content", "tool_calls", "function_call", "refusal")


@dataclass(frozen=True, slots=True)
class ContinuableRequest:
    """Request whose stream can be continued on another engine."""

    is_chat: bool
    document: Mapping[str, Any]
    """Its body."""

    def continuation(self, prompt: list[int], sent: list[int], text: str) -> bytes | None:
        """The body of the request for the rest of the answer; None if its limit leaves nothing.

        Args:
            prompt: ids of the prompt's tokens.
            sent: ids of the tokens whose text the client has.
            text: that text.
        """
        body = {**self.document, "return_token_ids": True}
        for name in _LIMITS:
            if isinstance(limit := body.get(name), int):
                body[name] = limit - len(sent)
                if body[name] < 1:
                    return None
        if not self.is_chat:
            body["prompt"] = [*prompt, *sent]
        elif sent:
            body["messages"] = [*body["messages"], {"role": "assistant", "content": text}]
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return json.dumps(body).encode()


def continuable_request(path: str, body: RequestBody) -> ContinuableRequest | None:
    """The request, parsed before, if an engine can be asked for the rest of its answer; otherwise None."""
    if path not in (CHAT, COMPLETIONS):
        return None
    document = json.loads(body.whole())
    temperature, prompt = document.get("temperature"), document.get("prompt")
    if document.get("stream") is not True or isinstance(temperature, bool) or temperature != 0:
        return None
    if not all(name in _PASSED or _is_neutral(name, value) for name, value in document.items()):
        return None
    if path == CHAT:
        messages = document.get("messages")
        asks = isinstance(messages, list) and messages and isinstance(messages[-1], dict)
        return (
            ContinuableRequest(True, document) if asks and messages[-1].get("role") != "assistant" else None
        )
    # Without a limit an engine has one of its own, which the rest would get once more.
    limited = isinstance(document.get("max_tokens"), int)
    one = isinstance(prompt, str) or (
        isinstance(prompt, list) and bool(prompt) and all(isinstance(token, int) for token in prompt)
    )
    return ContinuableRequest(False, document) if limited and one else None


def _is_neutral(name: str, value: object) -> bool:
    return any(
        value == one and isinstance(value, bool) == isinstance(one, bool) for one in _NEUTRAL.get(name, ())
    )


def with_token_ids(body: RequestBody) -> RequestBody:
    """A request that also asks for the ids of tokens."""
    place = next(iter(body)).index(b"{") + 1
    return body.replaced((place, place, RETURN_IDS))


class StreamRecord:
    """Ids and text that the client has got of one stream. Takes the ids out of the bytes on their way.

    Args:
        plan: its request.
    """

    def __init__(self, plan: ContinuableRequest) -> None:
        self._plan = plan
        self.failed = False
        """True once the engine has reported its own failure, or its continuation is not the same text: nothing more of this
        engine is passed on."""
        self.continuations = 0
        """Engines that have continued it."""
        self._exact = True
        self._finished = False
        self._rest = b""
        self._prompt: list[int] | None = None
        self._sent: list[int] = []
        self._pending: list[int] = []
        """Tokens without text so far: parts of a character. They are generated again."""
        self._text = ""
        self._before = 0
        """Tokens that came from engines before the present one."""
        self._head: dict[str, Any] = {}
        """Name and time of the stream, which every event has."""
        self._unproven = False

    def continuation(self) -> bytes | None:
        """The body of the request for the rest; None if the rest would not be provably the same, or there is none."""
        if not self._exact or self._finished or self._prompt is None:
            return None
        return self._plan.continuation(self._prompt, self._sent, self._text)

    def resume(self) -> None:
        """Expects the answer of another engine to the request for the rest."""
        self.continuations += 1
        self.failed, self._unproven = False, True
        self._rest, self._pending, self._before = b"", [], len(self._sent)

    def feed(self, chunk: bytes) -> bytes:
        """The bytes for the client after the next ones of the engine."""
        data, start, passed = self._rest + chunk, 0, []
        for match in EVENT_END.finditer(data):
            if self.failed:
                break
            passed.append(self._passed(data[start : match.end()]))
            start = match.end()
        self._rest = b"" if self.failed else data[start:]
        return b"".join(passed)

    def rest(self) -> bytes:
        """Bytes that are left at the end of a whole stream."""
        return self._rest

    def _passed(self, event: bytes) -> bytes:
        data = event.strip().removeprefix(b"data:").strip()
        if not data.startswith(b"{"):
            return event  # [DONE], or a comment
        try:
            document = json.loads(data)
        except ValueError:
            self._exact = False
            return event
        if is_failure(document):
            self.failed = True
            return b""
        choices = document.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        if self._unproven and not self._is_proved(document, choice):
            self.failed, self._exact = True, False
            return b""
        opens = self._before_text(choice)
        self._note(document, choice)
        if not self.continuations:
            self._head = self._head or {name: document.get(name) for name in ("id", "created")}
            return _IDS.sub(rb'"\1":null', event)
        return b"" if opens else self._rewritten(document)

    def _is_proved(self, document: Mapping[str, Any], choice: Mapping[str, Any]) -> bool:
        """True if the first event of a continuation has the ids of the prompt and of the tokens that were sent."""
        self._unproven = False
        return _prompt_ids(document, choice) == [*(self._prompt or ()), *self._sent]

    def _before_text(self, choice: Mapping[str, Any]) -> bool:
        """True for the chunk with the role, which a client has already."""
        delta = choice.get("delta")
        return isinstance(delta, dict) and "role" in delta and not delta.get("content")

    def _note(self, document: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        if self._prompt is None:
            self._prompt = _prompt_ids(document, choice)
        delta = choice.get("delta") if self._plan.is_chat else choice
        delta = delta if isinstance(delta, dict) else {}
        text, ids = delta.get("content" if self._plan.is_chat else "text") or "", choice.get("token_ids")
        if any(delta.get(name) for name in _OTHER_TEXT) or (text and not ids):
            self._exact = False
        self._pending += ids or []
        if text:
            self._sent += self._pending
            self._pending = []
            self._text += text
        self._finished = self._finished or choice.get("finish_reason") is not None

    def _rewritten(self, document: dict[str, Any]) -> bytes:
        """An event of a continuation as one of the same stream: with its name, and the usage of the whole."""
        usage = document.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            prompt, answer = len(self._prompt or ()), self._before + usage["completion_tokens"]
            document["usage"] = {
                **usage,
                "prompt_tokens": prompt,
                "completion_tokens": answer,
                "total_tokens": prompt + answer,
            }
        text = json.dumps({**document, **self._head}, separators=(",", ":"), ensure_ascii=False)
        return b"data: " + _IDS.sub(rb'"\1":null', text.encode()) + b"\n\n"


def _prompt_ids(document: Mapping[str, Any], choice: Mapping[str, Any]) -> list[int] | None:
    found = document.get("prompt_token_ids") or choice.get("prompt_token_ids")
    return list(found) if isinstance(found, list) else None

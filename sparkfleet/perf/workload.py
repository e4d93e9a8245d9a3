"""Workload of an engine: lengths, concurrency, arrivals, and the kind of text."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from sparkfleet.values import Value

Content = Literal["mixed", "code", "prose", "structured", "json", "math", "agent", "random", "book"]
"""Kinds of answers; they decide which share of a draft is right. structured: counts, lists, what repeats itself; book: a
novel continued, as llama-benchy asks for."""

Window = Literal["decode", "burst", "served", "closed", "steady", "whole"]
"""Time span of tokens per second. decode: only time in which nothing is prefilled; burst: all prompts come at once, from the
first token to the last; served: the same with all prefills counted in the tok/s of all; closed: a next request follows each
that ends, all time counted; steady: prefills of others in between; whole: tok/s of one request, too, counted from when it
was sent."""

PROMPT = 2048
"""Prompt of a predicted TTFT, tokens; less if the context is short."""
ANSWER = 256
"""Answer of a predicted rate, tokens."""


class Conversation(NamedTuple):
    """Requests that go on with an earlier one, whose prefix cache has what came before them."""

    follow_ups: float
    """Their share of all requests."""
    earlier: int
    """Tokens before the new ones of each."""


CHAT = Conversation(0.15, 8 * 1024)
"""1,229 tokens of earlier turns in the mean beside a plan's new ones (`PROMPT`): 37 % of all tokens of prompts, as in an
hour of Kimi's chat. Its 12,031 requests begin with 4,497 of their 12,035 tokens again; 34 % of them with more than
1,024, and those with 7,168 in the median. Counted from FAST25-release/traces/conversation_trace.jsonl of kvcache-
ai/Mooncake@3b5a594, by its blocks of 512 tokens. In two traces of Alibaba's the share is 54 and 62 % (arXiv
2506.02634)."""
SESSION = Conversation(1.0, 20_000)
"""Of an agent: each of its turns begins with the earlier ones. Their length is assumed: at 2,000 tok/s of prefill and 50 of
decode a turn with 256 tokens of answer takes 15 s, and 6 s with the cache."""


class Workload(Value):
    """One kind of request, many at once. Numbers are tokens unless noted."""

    prompt: int = 1024
    """New tokens of the prompt, to be prefilled."""
    depth: int = 0
    """Tokens before the prompt."""
    depth_cached: bool = True
    """The depth is in the KV cache already; otherwise it is prefilled with the prompt."""
    generate: int = 256
    concurrency: int = 1
    """Requests in flight."""
    arrivals_per_s: float | None = None
    """Requests arrive at this rate, whatever is in flight; None: the next one starts when one ends."""
    requests: int | None = None
    """Number of requests in all, the last ones with empty slots beside them; None: not known (100 of those that arrive
    at a rate, a loop without end otherwise)."""
    content: Content = "mixed"
    window: Window = "steady"
    answers_apart: bool = False
    """The answer does not follow the prompt: both begin at the depth, in runs of their own (llama-bench)."""

    @property
    def prefill(self) -> int:
        """Tokens that are prefilled before the first token comes out."""
        return self.prompt + (0 if self.depth_cached else self.depth)

    @property
    def context(self) -> float:
        """Tokens in the KV cache of one request, halfway through its answer."""
        return self.depth + (0 if self.answers_apart else self.prompt) + self.generate / 2


CHECK = Workload(prompt=1, generate=64, window="decode")
"""Measured request to every group right after its start, alone: a word, and 64 tokens (group/probe.py)."""


def predicted_content(kind: str) -> Content:
    """The text that speeds are predicted for, by a deployment's `content`: edits are predicted as code."""
    found: Content = (
        "code" if kind == "edits" else next((one for one in get_args(Content) if one == kind), "mixed")
    )
    return found


def conversation_of(kind: str) -> Conversation:
    """The conversations that are assumed for a deployment's `content`."""
    return SESSION if kind in ("agent", "edits") else CHAT


def usual(context: int, concurrency: int, content: Content = "mixed") -> Workload:
    """The requests that speeds are predicted for; shorter ones if the context is too short."""
    prompt = min(PROMPT, max(1, context // 2))
    answer = min(ANSWER, max(1, context - prompt))
    return Workload(prompt=prompt, generate=answer, concurrency=concurrency, content=content, window="burst")

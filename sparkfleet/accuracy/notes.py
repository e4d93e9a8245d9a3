"""Reads the notes of a row: the text, the harness, sizes of chunks and slots.

Every word that counts stands here and nowhere else: `scripts/measurements.py` keeps of anybody's notes what `telling` finds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from sparkfleet.accuracy.aliases import TOKENS, number
from sparkfleet.perf.workload import Content, Window

MOST = 10**7
"""No chunk, slot or request count of a benchmark is larger."""

Trait = Literal[
    "estimate",
    "marlin",
    "eager",
    "uncached",
    "benchy",
    "mesh",
    "by ttft",
    "tcp",
    "1gbe",
    "replicas",
    "pipeline",
]

_TRAITS: Mapping[Trait, str] = {
    "estimate": r"^not_measured",
    "marlin": r"marlin",
    "eager": r"(?:enforce[-_]|\b)(?<!non-)eager",
    "uncached": r"enforce-eager",
    "benchy": r"llama-benchy",
    "mesh": r"\bmesh",
    "by ttft": r"(?:per-request )?prompt/ttft",
    "tcp": r"over tcp|tcp socket",
    "1gbe": r"1 gbe",
    "replicas": r"\b2x solo|replicas",
    "pipeline": r"pipeline parallel",
}

_WINDOWS: tuple[tuple[str, Window], ...] = (
    (r"(?:llama-)?batched-bench|s_tg|decode net of prefill", "decode"),
    (r"closed-loop|open-loop|bench_serve|bench serve", "closed"),
    (r"served|incl\.? (?:prefill|ttft)|\bwall", "served"),
    (r"llama-benchy|prefill overlap", "burst"),
)

_SLOTS = (
    r"(?:max[-_ ]num[-_ ]seqs|max-running-requests|--parallel|server parallel)[ =]*(\d+)",
    r"\b(\d+) (?:serving )?slots",
    r"\bseqs(\d+)\b",
)
_CHUNK = r"(?:max-num-batched-tokens|prefill-chunk|mnbt|-ub)[ =]*(\d+k?)"
_PROMPT = r"prompt ~(\d+)"
_ARRIVALS = r"(?:rate=|rate sweep at )([\d.]+) rps"
_REQUESTS = r"completed=(\d+)"
_BRANCHES = r"topk=4"
"""Of a tree of drafts: kept with the figure, though nothing is predicted from it."""

_CONTENT: tuple[tuple[str, Content], ...] = (
    (r"mixed code", "mixed"),
    (r"json|schema", "json"),
    (
        r"structur|\bcount|numbered|high-acceptance|high acceptance|objective task|workload repeat"
        r"|workload tools|r0b0bench concurrency lane",
        "structured",
    ),
    (r"agentic|agent (?:turn|session|traffic)", "agent"),
    (r"prose reasoning|ifeval", "prose"),
    (r"math|gsm|reasoning", "math"),
    (r"\b(?:fr|de)\b|german|french", "prose"),  # drafters guess other languages no better than prose
    (r"\bcod(?:e|ing)|codegen|\bbst\b|hash-map|\blru|is_prime|humaneval|script", "code"),
    (r"mmlu|reason|eval\b", "math"),
    (r"prose|essay|story|narrative|explanation|summar|translat", "prose"),
    (r"synthetic|random", "random"),
    (r"llama-benchy|spark-arena", "book"),
)

_TELLING = re.compile(
    "|".join(
        (
            *_TRAITS.values(),
            *(pattern for pattern, _ in _WINDOWS),
            *(*_SLOTS, _CHUNK, _PROMPT, _ARRIVALS, _REQUESTS, _BRANCHES),
            *(pattern for pattern, _ in _CONTENT),
        )
    )
)


def telling(notes: str) -> str:
    """The words of some notes that say how a figure was measured, each once, in order."""
    return "; ".join(dict.fromkeys(found[0] for found in _TELLING.finditer(notes.lower())))


def says(trait: Trait, notes: str) -> bool:
    """True if the notes name this."""
    return re.search(_TRAITS[trait], notes) is not None


def window(notes: str) -> Window:
    """Window that the tokens per second cover."""
    return next((name for pattern, name in _WINDOWS if re.search(pattern, notes)), "steady")


def slots(notes: str) -> int | None:
    """Requests that the engine runs at once."""
    found = next((found for pattern in _SLOTS if (found := re.search(pattern, notes))), None)
    return (whole(found[1]) or None) if found else None


def chunk(notes: str) -> int | None:
    """Tokens of a prefill that go through at once."""
    found = re.search(_CHUNK, notes)
    return (whole(found[1]) or None) if found else None


def prompt(notes: str) -> int:
    """Tokens of the prompts, 0 if it is not said."""
    found = re.search(_PROMPT, notes)
    return whole(found[1]) if found else 0


def arrivals(notes: str) -> float | None:
    """Requests per second that arrive whatever is in flight."""
    found = re.search(_ARRIVALS, notes)
    value = number(found[1]) if found else None
    return value if value and 1e-3 <= value <= MOST else None


def requests(notes: str) -> int:
    """Requests that arrived in all: as said, or those of 250 seconds, or 100."""
    total = re.search(_REQUESTS, notes)
    if total:
        return max(1, whole(total[1]))
    rate = arrivals(notes)
    return max(100, round(250 * rate)) if rate else 100


def whole(text: str) -> int:
    """A size in the notes ("8192", "8k"); 0 if it cannot be one."""
    value = number(text, TOKENS)
    return int(value) if value is not None and value <= MOST else 0


def content(notes: str) -> Content:
    """Kind of text."""
    return next((name for pattern, name in _CONTENT if re.search(pattern, notes)), "mixed")

"""What the notes of a row say of how it was measured: the text, the harness, sizes of chunks and slots."""

from __future__ import annotations

import re

from sparkfleet.bench.words import TOKENS, number
from sparkfleet.planning.workload import Content, Window

MOST = 10**7
"""No chunk, slot or request count of a benchmark is larger."""


def window(notes: str) -> Window:
    """What the tokens per second span."""
    if "batched-bench" in notes or "s_tg" in notes or "decode net of prefill" in notes:
        return "decode"
    if re.search(r"closed-loop|open-loop|bench_serve|bench serve", notes):
        return "closed"
    if re.search(r"served|incl\.? prefill|incl\.? ttft|wall", notes):
        return "served"
    return "burst" if "llama-benchy" in notes or "prefill overlap" in notes else "steady"


def slots(notes: str) -> int | None:
    """Requests that the engine runs at once."""
    found = re.search(
        r"(?:max[-_ ]num[-_ ]seqs|max-running-requests|--parallel|server parallel)[ =]*(\d+)", notes
    )
    found = found or re.search(r"\b(\d+) (?:serving )?slots", notes) or re.search(r"\bseqs(\d+)\b", notes)
    return (whole(found.group(1)) or None) if found else None


def chunk(notes: str) -> int | None:
    """Tokens of a prefill that go through at once."""
    found = re.search(r"(?:max-num-batched-tokens|prefill-chunk|mnbt|-ub)[ =]*(\d+k?)", notes)
    return (whole(found.group(1)) or None) if found else None


def prompt(notes: str) -> int:
    """Tokens of the prompts, 0 where it is not said."""
    found = re.search(r"prompt ~(\d+)", notes)
    return whole(found.group(1)) if found else 0


def arrivals(notes: str) -> float | None:
    """Requests per second that arrive whatever is in flight."""
    found = re.search(r"(?:rate=|rate sweep at )([\d.]+) rps", notes)
    value = number(found.group(1)) if found else None
    return value if value and 1e-3 <= value <= MOST else None


def requests(notes: str) -> int:
    """Requests that arrived in all: as said, or those of 250 seconds, or 100."""
    total = re.search(r"completed=(\d+)", notes)
    if total:
        return max(1, whole(total.group(1)))
    rate = arrivals(notes)
    return max(100, round(250 * rate)) if rate else 100


def whole(text: str) -> int:
    """A size in the notes ("8192", "8k"); 0 where it cannot be one."""
    value = number(text, TOKENS)
    return int(value) if value is not None and value <= MOST else 0


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


def content(notes: str) -> Content:
    """What the text was."""
    for pattern, name in _CONTENT:
        if re.search(pattern, notes):
            return name
    return "mixed"

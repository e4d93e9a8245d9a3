"""Reads the notes of a row: the text, the harness, sizes of chunks and slots.

All words that count are here: `scripts/measurements.py` keeps only what `relevant_words` finds of published notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from sparkfleet.accuracy.aliases import TOKENS, number
from sparkfleet.perf.workload import Content, Window

MOST = 10**7
"""Larger than any chunk, slot or request count of a benchmark."""

Trait = Literal[
    "estimate",
    "impaired",
    "cached",
    "warming",
    "marlin",
    "eager",
    "ray",
    "benchy",
    "by ttft",
    "apart",
    "tcp",
    "1gbe",
    "replicas",
    "pipeline",
]

_TRAITS: Mapping[Trait, str] = {
    "estimate": r"^not_measured",
    "impaired": r"\bmemory-pressured\b|\bstuck at \d+ mhz|\bfabric as degraded\b|\bdriver regression\b",
    "cached": r"\bprefix cache \d+%(?: delta)? hit\b|\blooks cached\b|\bcache artefact\b|\bwarm prefix\b",
    "warming": r"\bwarm-up in the sample\b",
    "marlin": r"(?<!no )(?<!non-)(?<!not )(?:\b|(?<=_))marlin\b(?!_)",
    "ray": r"(?<!no )(?<!no-)\bray\b",
    "eager": r"(?<!non-)(?<!no )(?:\benforce[-_]eager|\beager|\bno cuda graphs)\b",
    "benchy": r"\bllama-benchy\b",
    "by ttft": r"\b(?:per-request )?prompt/ttft\b",
    "apart": r"\bllama-bench\b",
    "tcp": r"\bover tcp\b|\btcp socket\b",
    "1gbe": r"\b1 gbe\b",
    "replicas": r"\b2x solo\b|\breplicas\b",
    "pipeline": r"\bpipeline parallel\b",
}

_WINDOWS: tuple[tuple[str, Window], ...] = (
    (
        r"\bllama-bench\b|\b(?:llama-)?batched-bench\b|\bs_tg\b|\bdecode net of prefill\b|\bserver metrics, decode only\b"
        r"|\bengine log rate\b|\bsum of decode times\b",
        "decode",
    ),
    (
        r"\btime of the whole request\b|\bwall of the requests?\b|\btokens over the wall incl\. ttft\b",
        "whole",
    ),
    (r"\bclosed-loop\b|\bopen-loop\b|\bbench[_ ]serve\b", "closed"),
    (r"\bserved\b|\bincl\.? (?:prefill|ttft)\b|\bwall\b", "served"),
    (r"\bllama-benchy\b|\bprefill overlap\b", "burst"),
)

_SLOTS = (
    r"(?:max[-_ ]num[-_ ]seqs|max-running-requests|--parallel|server parallel)[ =]*(\d+)",
    r"\b(\d+) (?:serving )?slots",
    r"\bseqs(\d+)\b",
)
_CHUNK = r"(?:max-num-batched-tokens|prefill-chunk|mnbt|-ub)[ =]*(\d+k?)"
_SHARED = r"\bdcp ?=? ?(\d+)\b"
"""Decode context parallelism: ranks that share one KV cache."""
_PROMPT = r"prompt ~(\d+)"
_ARRIVALS = r"(?:rate=|rate sweep at )([\d.]+) rps"
_REQUESTS = r"completed=(\d+)"
_IN_ALL = r"\b(\d+) requests in all\b"
_FAILED = r"\b(\d+) of the \d+ requests failed\b"
_BRANCHES = r"topk=4"
"""Of a tree of draft tokens: kept with the figure, but no prediction uses it."""

_CONTENT: tuple[tuple[str, Content], ...] = (
    (
        r"\bmixed code\b|\bcode ?(?:and|or|\+) ?prose\b|\bprose ?(?:and|or|\+) ?code\b"
        r"|\bcode, (?:json|prose|math)\b|\bmixed requests\b|\bmt-bench\b|\ball content\b",
        "mixed",
    ),
    (r"\bjson(?:\d+)?\b|\bschema\b", "json"),
    (
        r"\bstructur(?:ed|al)\b|\bcount(?:s|ing|-to-\d+)?\b(?! of\b)|\bcount\d+\b|\bnumbered\b|\bhigh[- ]acceptance\b"
        r"|\bobjective task\b|\bworkload repeat\b|\bworkload tools\b|\br0b0bench concurrency lane\b"
        r"|\bpredictable (?:code|prompt)\b",
        "structured",
    ),
    (r"\bagentic\b|\bagent (?:turns?|sessions?|traffic)\b", "agent"),
    (r"\bprose reasoning\b|\bifeval\b", "prose"),
    (
        r"\bmath\b|\bgsm8?k?\b|(?<!incl )(?<!incl\. )(?<!including )(?<!without )(?<!no )\breasoning\b"
        r"(?! (?:tokens|fields?|parser|off|on|effort|content|counted|included))",
        "math",
    ),
    (
        r"\b(?:fr|de)\b|\bgerman\b|\bfrench\b",
        "prose",
    ),  # draft models predict other languages no better than prose
    (
        r"(?<!exit )(?<!error )(?<!status )\bcod(?:e|ing)\b(?!-switch)|\bcodegen\b|\bbst\b|\bhash-map\b|\blru(?:cache)?\b"
        r"|\bis_prime\b|\bhumaneval\b|\blivecodebench\b|\bmbpp\b|\bscript\b",
        "code",
    ),
    (r"\bmmlu(?:-pro)?\b|\breason\b|(?<!vllm team )\beval\b", "math"),
    (
        r"\bprose\b|\bessay\b|\bstory\b|\bnarrative\b|\bexplanations?\b|\bsummar(?:y|ies|i[sz]e|i[sz]ation)\b|\btranslat(?:e|ion)\b",
        "prose",
    ),
    (r"\bsynthetic\b|\brandom\b", "random"),
    (r"\bllama-benchy\b|\bspark-arena\b", "book"),
)
"""Patterns of kinds of text. A harness's "scripts" and a count's "incl. reasoning" are no text."""
_OF_A_HARNESS: frozenset[Content] = frozenset(("random", "book"))
"""Default texts of harnesses: they count only if no remark names another text."""
_KINDS = tuple((re.compile(pattern), name) for pattern, name in _CONTENT)

_RELEVANT = re.compile(
    "|".join(
        (
            *_TRAITS.values(),
            *(pattern for pattern, _ in _WINDOWS),
            *(*_SLOTS, _CHUNK, _SHARED, _PROMPT, _ARRIVALS, _REQUESTS, _IN_ALL, _FAILED, _BRANCHES),
            *(pattern for pattern, _ in _CONTENT),
        )
    )
)


def relevant_words(notes: str) -> str:
    """Words of notes about how a figure was measured, each once, in order; remarks stay separated by ";"."""
    remarks, known = [], set[str]()
    for remark in notes.lower().split(";"):
        words = [found[0] for found in _RELEVANT.finditer(remark.strip())]
        fresh = [word for word in dict.fromkeys(words) if word not in known]
        known.update(fresh)
        remarks += [", ".join(fresh)] if fresh else []
    return "; ".join(remarks)


def has_trait(trait: Trait, notes: str) -> bool:
    """True if the notes contain words for this trait."""
    return re.search(_TRAITS[trait], notes) is not None


def window(notes: str) -> Window | None:
    """Window that the tokens per second cover; None if the notes do not have it."""
    return next((name for pattern, name in _WINDOWS if re.search(pattern, notes)), None)


def slots(notes: str) -> int | None:
    """Requests that the engine runs at once."""
    found = next((found for pattern in _SLOTS if (found := re.search(pattern, notes))), None)
    return (whole(found[1]) or None) if found else None


def chunk(notes: str) -> int | None:
    """Tokens of one prefill chunk."""
    found = re.search(_CHUNK, notes)
    return (whole(found[1]) or None) if found else None


def shared_context(text: str) -> int:
    """Ranks that share one KV cache (DCP); 1 if nothing is noted of it."""
    found = re.search(_SHARED, text)
    return (whole(found[1]) or 1) if found else 1


def prompt(notes: str) -> int:
    """Tokens of the prompts; 0 if the notes do not have them."""
    found = re.search(_PROMPT, notes)
    return whole(found[1]) if found else 0


def arrivals(notes: str) -> float | None:
    """Requests per second of an open loop."""
    found = re.search(_ARRIVALS, notes)
    value = number(found[1]) if found else None
    return value if value and 1e-3 <= value <= MOST else None


def requests(notes: str) -> int | None:
    """Requests in all: as stated, or those of 250 seconds, at least 100; None: a loop without a known end."""
    total = re.search(_REQUESTS, notes)
    if total:
        return max(1, whole(total[1]))
    rate = arrivals(notes)
    if rate:
        return max(100, round(250 * rate))
    asked, failed = re.search(_IN_ALL, notes), re.search(_FAILED, notes)
    if asked is None:
        return None
    return max(1, whole(asked[1]) - (whole(failed[1]) if failed else 0))


def whole(text: str) -> int:
    """A size in the notes ("8192", "8k"); 0 if it cannot be one."""
    value = number(text, TOKENS)
    return int(value) if value is not None and value <= MOST else 0


def content(notes: str) -> Content | None:
    """Kind of text in the first remark that has one; a harness's default text comes last. None: no remark has one."""
    kinds = [
        name
        for remark in notes.split(";")
        if (name := next((n for p, n in _KINDS if p.search(remark)), None))
    ]
    return next((kind for kind in kinds if kind not in _OF_A_HARNESS), kinds[0] if kinds else None)

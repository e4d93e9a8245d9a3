"""Options for candidates: speculative methods, and the reason for each that is not tried. Pure.

drafting_for      the methods to try on one engine; every other method of a deployment file is excluded with a reason
depth_on          the depth that a stack takes: by load if its release has a schedule, else the best for one load
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, get_args

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.io.licenses import license_class
from sparkfleet.knowledge.engines.method_support import support_of, takes_schedule
from sparkfleet.knowledge.models.model_names import plain
from sparkfleet.knowledge.models.speculators import (
    Speculator,
    bundles,
    speculator_with,
    speculators_of,
    unmeasured_draft,
)
from sparkfleet.knowledge.published.evidence import evidence
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.place.gguf_drafts import unreadable
from sparkfleet.planner.place.stacks import Stack
from sparkfleet.planner.types.plan import ENGINE_LABELS, Why
from sparkfleet.specs.deployment import EngineName, Method, Variant
from sparkfleet.specs.model_name import base_name
from sparkfleet.specs.remote_code import is_pinned

METHODS: tuple[Method, ...] = get_args(Method)
NGRAM_TOKENS = 4
HEAD_TOKENS = 3
"""Draft tokens if nothing better is published: NGRAM and MTP heads."""
BEAM_STEPS, BEAM_TOPK, BEAM_TOKENS = 5, 4, 20
"""The beam of field report 000, and the draft tokens that the re-tagged image requires as a flag (known-issues)."""
DEFAULT_TOKENS: Mapping[str, int] = {
    "mtp": HEAD_TOKENS,
    "nextn": HEAD_TOKENS,
    "ngram": NGRAM_TOKENS,
    "eagle3": 3,
    "dflash": 3,
    "dflash2": 7,
    "dspark": 7,
    "draft": 4,
}
"""Draft tokens per step if neither the deployment, nor publications, nor the drafter's block give a number. Blocks of the
published DFlash2 and DSpark drafters have 8 tokens with the one before them, and 7 (z-lab, RadixArk; SGLang's default)."""
ALIKE = {
    "vllm": {"nextn": "mtp"},
    "sglang": {"mtp": "nextn"},
    "trtllm": {"nextn": "mtp"},
    "llama.cpp": {"nextn": "mtp"},
}
"""The same head by another engine's name: the planner tries it under the engine's own."""
HEADS = {"vllm": "mtp", "sglang": "nextn", "llama.cpp": "mtp"}
"""The method that needs no published evidence if the checkpoint has a head, by engine."""

WITHOUT_NGRAM = ("trtllm", "llama.cpp")
"""Engines with which NGRAM is not tried unless somebody published it or a deployment sets it."""


class Exclusion(NamedTuple):
    """A method that is not tried on an engine."""

    method: Method
    reason: str
    why: Why = "engine"


class SpeculationOptions(NamedTuple):
    """Speculative methods to try, and every other one with its reason."""

    options: tuple[Speculation, ...]
    excluded: tuple[Exclusion, ...]


class Drafts(NamedTuple):
    """Facts about drafts: read from their files if a deployment names them, otherwise from publications."""

    checkpoint: Checkpoint
    """Of the model."""
    named: Mapping[str, Checkpoint]
    open_only: bool = False
    """The deployment requires open-source licences."""


def drafting_for(
    variant: Variant, drafts: Drafts, engine: EngineName, concurrency: int
) -> SpeculationOptions:
    """The speculative methods that `engine` could use for a checkpoint; a pinned one is the only one.

    Args:
        variant: of the deployment.
        drafts: facts of the checkpoint and of drafts.
        engine: by the name that deployments give it.
        concurrency: requests at once that a depth is chosen for if a deployment pins the method alone.
    """
    wanted = variant.speculation
    known = _speculators(base_name(variant.model), engine)
    if wanted.method != "auto":
        tried = _pinned(variant, drafts, engine, known, concurrency)
    else:
        tried = _published(variant, drafts, engine, known)
    done = {one.method for one in tried.options} | {one.method for one in tried.excluded}
    rest = (_untried(variant, drafts, engine, method) for method in METHODS if method not in done)
    return SpeculationOptions(tried.options, (*tried.excluded, *rest))


def depth_on(speculation: Speculation, stack: Stack, concurrency: int) -> Speculation:
    """The same with the depth that the stack takes: alone and under load, or the one for `concurrency` requests."""
    chain = speculation.topk == 1
    if chain and takes_schedule(stack.engine, stack.version, speculation.method):
        return speculation
    return speculation.at(concurrency)


@lru_cache(maxsize=1024)
def _speculators(model: str, engine: EngineName) -> tuple[Speculator, ...]:
    return speculators_of(model, engine)


# --- the planner's own choice -----------------------------------------------------------------------------------------


def _published(
    variant: Variant, drafts: Drafts, engine: EngineName, known: Sequence[Speculator]
) -> SpeculationOptions:
    """Methods published for the model and engine, its own head, NGRAM, and plain decoding."""
    options: dict[Speculation, None] = {}
    excluded: list[Exclusion] = []
    for one in known:
        missing = _missing_head(one.method, one.head, drafts.checkpoint, one.draft)
        missing = missing or unreadable(one.method, drafts.checkpoint)
        if support_of(engine, one.method) is None:
            excluded.append(Exclusion(one.method, _no_such(engine)))
        elif missing:
            excluded.append(Exclusion(one.method, missing))
        elif shut := _closed(one.draft, drafts) or _unpinned(one.draft, variant):
            excluded.append(Exclusion(one.method, shut, "wanted"))
        else:
            options |= dict.fromkeys(_depths(one, engine))
    options |= dict.fromkeys(_general(drafts.checkpoint, engine, {option.method for option in options}))
    return SpeculationOptions((*options, Speculation()), _unless_tried(excluded, options))


def _unless_tried(
    excluded: Sequence[Exclusion], options: Mapping[Speculation, None]
) -> tuple[Exclusion, ...]:
    """A method with one draft that is excluded and another that is tried is tried."""
    tried = {option.method for option in options}
    return tuple(one for one in dict.fromkeys(excluded) if one.method not in tried)


def _depths(one: Speculator, engine: EngineName) -> Iterator[Speculation]:
    depth = one.tokens
    fields: dict[str, object] = {"method": one.method, "draft": one.draft}
    fields["tokens"] = depth.alone if depth else DEFAULT_TOKENS[one.method]
    if depth and depth.busy is not None and depth.busy < depth.alone:
        fields |= {"busy": depth.busy, "busy_from": depth.busy_from}
    yield from _spelled(Speculation.model_validate(fields), engine)


def _spelled(speculation: Speculation, engine: EngineName) -> Iterator[Speculation]:
    """SGLang's beam as it was published, and with its draft tokens as a flag, as some builds require."""
    if engine == "sglang" and speculation.method == "nextn" and speculation.tokens == BEAM_STEPS:
        beam = speculation.model_copy(update={"topk": BEAM_TOPK})
        yield beam
        yield beam.model_copy(update={"beam_tokens": BEAM_TOKENS})
    elif engine == "sglang" and speculation.method == "nextn":
        yield speculation.model_copy(update={"beam_tokens": speculation.tokens + 1})
    else:
        yield speculation


def _general(checkpoint: Checkpoint, engine: EngineName, have: set[Method]) -> Iterator[Speculation]:
    """Methods that need no published evidence: the checkpoint's own head, and NGRAM."""
    method = HEADS.get(engine)
    if _heads(checkpoint) and method and method not in have:
        yield from _spelled(Speculation.model_validate({"method": method, "tokens": HEAD_TOKENS}), engine)
    if engine not in WITHOUT_NGRAM and "ngram" not in have:
        yield Speculation(method="ngram", tokens=NGRAM_TOKENS)


# --- a method that the deployment sets --------------------------------------------------------------------------------


def _pinned(
    variant: Variant, drafts: Drafts, engine: EngineName, known: Sequence[Speculator], concurrency: int
) -> SpeculationOptions:
    wanted = variant.speculation
    assert wanted.method != "auto"
    if wanted.method == "none":
        return SpeculationOptions((Speculation(),), ())
    one = _of_pinned(wanted.method, wanted.draft, drafts.checkpoint.id, engine, known)
    if support_of(engine, wanted.method) is None:
        return SpeculationOptions((), (Exclusion(wanted.method, _no_such(engine)),))
    draft = wanted.draft or (one.draft if one else None)
    head = _head_of(wanted.method, drafts.checkpoint, draft, engine)
    missing = _missing_head(wanted.method, head, drafts.checkpoint, draft)
    missing = missing or unreadable(wanted.method, drafts.checkpoint)
    missing = missing or _closed(draft, drafts) or _unpinned(draft, variant)
    if missing:
        return SpeculationOptions((), (Exclusion(wanted.method, missing, "wanted"),))
    k = wanted.tokens or _depth(wanted.method, draft, drafts, one, concurrency)
    speculation = Speculation.model_validate({"method": wanted.method, "tokens": k, "draft": draft})
    return SpeculationOptions(tuple(_spelled(speculation, engine)), ())


def _of_pinned(
    method: Method, draft: str | None, model: str, engine: EngineName, known: Sequence[Speculator]
) -> Speculator | None:
    """The published entry of a method that the deployment sets: its draft's, what plans propose, or a draft by name only."""
    exact = speculator_with(draft) if draft else None
    if exact is not None and exact.method == method:
        return exact
    one = next((speculator for speculator in known if speculator.method == method), None)
    if draft is None and (one is None or (one.head == "separate" and one.draft is None)):
        return unmeasured_draft(model, engine, method) or one
    return one


def _depth(
    method: Method, draft: str | None, drafts: Drafts, one: Speculator | None, concurrency: int
) -> int:
    """Draft tokens per step: as published for that draft, by the drafter's own block, or as usual for the method."""
    if one is not None and one.tokens is not None and draft == one.draft:
        return one.tokens.at(concurrency)
    found = drafts.named.get(draft) if draft else None
    if draft is None and method == "dspark" and drafts.checkpoint.dspark_block is not None:
        return drafts.checkpoint.dspark_block
    if found is not None and found.draft_block is not None:
        # DFlash counts the token before the drafts in its block, DSpark does not.
        return max(1, found.draft_block - (0 if method == "dspark" else 1))
    return one.tokens.at(concurrency) if one and one.tokens else DEFAULT_TOKENS[method]


def _head_of(method: Method, checkpoint: Checkpoint, draft: str | None, engine: EngineName) -> str:
    """The place of the drafting weights: the checkpoint, a separate one, or none."""
    if method == "ngram":
        return "none"
    if method in ("mtp", "nextn"):
        # Gemma 4 has no head of its own: its drafter is a checkpoint, which one engine loads.
        return "separate" if draft is not None and _loads(engine, draft) else "checkpoint"
    return "checkpoint" if method == "dspark" and draft is None and _has_dspark(checkpoint) else "separate"


def _loads(engine: EngineName, draft: str) -> bool:
    """False if the draft is known, and the engine is none of those that load it."""
    known = speculator_with(draft)
    return known is None or engine in known.engines


# --- reasons ----------------------------------------------------------------------------------------------------------


def _missing_head(method: str, head: str, checkpoint: Checkpoint, draft: str | None) -> str:
    """Reason why a method has no draft model or head; "" if it has one."""
    if head == "separate" and draft is None:
        return "the name of its draft checkpoint is not published; set `speculation: {method: …, draft: …}`"
    if head == "checkpoint" and not _heads(checkpoint) and method in ("mtp", "nextn"):
        if _has_dspark(checkpoint):
            return "the checkpoint has DSpark in place of an MTP head: `speculation: dspark`"
        return "the checkpoint has no MTP head" + (
            "" if checkpoint.mtp_layers is not None else ", by its config"
        )
    return ""


def _heads(checkpoint: Checkpoint) -> int:
    """MTP layers of the weights; one if only a config is known and somebody published a run of the model with its head."""
    return declared_heads(checkpoint) or int(head_was_run(checkpoint))


def declared_heads(checkpoint: Checkpoint) -> int:
    """MTP layers by the weights or, if those are not known, by the config; none if they are DSpark's.

    DeepSeek stores the blocks of DSpark as `mtp.0` to `mtp.2`, and its config declares an MTP head all the same.
    """
    if _has_dspark(checkpoint):
        return 0
    return checkpoint.declared_mtp_layers if checkpoint.mtp_layers is None else checkpoint.mtp_layers


def _has_dspark(checkpoint: Checkpoint) -> bool:
    """True if the blocks of DSpark are in the checkpoint's own weights."""
    return checkpoint.dspark_block is not None or bundles(checkpoint.id, "dspark")


def head_was_run(checkpoint: Checkpoint) -> bool:
    """True if MTP was published for the model in any format, and its weights were not read."""
    if checkpoint.weights_known or _has_dspark(checkpoint):
        return False
    model = base_name(checkpoint.id)
    known = [one.head for one in speculators_of(model) if one.method in ("mtp", "nextn")]
    if known:
        return "checkpoint" in known
    return evidence().ran(plain(model), "mtp")


def _closed(draft: str | None, drafts: Drafts) -> str:
    """Reason why the licence of a draft excludes it; "" if it does not."""
    if draft is None or not drafts.open_only:
        return ""
    license_id = license_of_draft(draft, drafts.named)
    if license_class(license_id) == "open-source":
        return ""
    kind = "not open source" if license_id else "it may not be open source"
    return f"license of the draft {draft} {license_id or 'not known'}: {kind}, but the deployment requires `license: open`"


def _unpinned(draft: str | None, variant: Variant) -> str:
    """Reason why a draft is not loaded by an engine that may run code of checkpoints; "" if it can be."""
    if draft is None or not variant.trust_remote_code or is_pinned(draft):
        return ""
    return f"`trust_remote_code: true` would run code of the draft too; pin it: `draft: {draft}@COMMIT`"


def license_of_draft(draft: str, named: Mapping[str, Checkpoint]) -> str:
    """The licence of a draft: by its own files if they were read, else as published; "" if neither names one."""
    read = named.get(draft)
    if read is not None and read.license.id:
        return read.license.id
    one = speculator_with(draft)
    return (one.license or "") if one else ""


def _untried(variant: Variant, drafts: Drafts, engine: EngineName, method: Method) -> Exclusion:
    """Reason why nobody proposed a method on an engine."""
    pinned = variant.speculation.method
    if pinned != "auto":
        return Exclusion(method, f"the deployment sets `speculation: {pinned}`")
    if support_of(engine, method) is None:
        return Exclusion(method, _no_such(engine, ALIKE[engine].get(method)))
    if other := ALIKE.get(engine, {}).get(method):
        return Exclusion(method, f"{ENGINE_LABELS[engine]} has it as {other.upper()}")
    model = base_name(variant.model)
    elsewhere = [one for one in speculators_of(model) if one.method == method]
    if elsewhere and drafts.checkpoint.gguf is None:  # a GGUF has the heads that its maker put into the file
        engines = " and ".join(ENGINE_LABELS[name] for name in elsewhere[0].engines)
        return Exclusion(
            method, f"published for this model with {engines} only; to try it: `speculation: {method}`"
        )
    if method not in ("mtp", "nextn", "ngram"):
        unmeasured = unmeasured_draft(model, engine, method)
        return Exclusion(method, _unmeasured(unmeasured) if unmeasured else NO_DRAFT)
    return Exclusion(method, _missing_head(method, "checkpoint", drafts.checkpoint, None) or UNPUBLISHED)


NO_DRAFT = "no draft for this model is published; with one of yours: `speculation: {method: …, draft: …}`"
UNPUBLISHED = "nobody has published it for this model with this engine"


def _unmeasured(one: Speculator) -> str:
    return f"{one.draft} is published, and nobody has measured it on a Spark; to try it: `speculation: {one.method}`"


def _no_such(engine: EngineName, other: str | None = None) -> str:
    has = f"; it has {other.upper()}" if other else ""
    return f"{ENGINE_LABELS[engine]} has no such method{has}"

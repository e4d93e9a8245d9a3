"""`deployments/*.yaml`: what is to be served under one public model name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from sparkfleet.specs.fields import (
    EnvName,
    FrozenDict,
    HttpPath,
    Image,
    KeyName,
    MemorySize,
    ModelId,
    NodeName,
    OneLine,
    Problem,
    PublicName,
    Spec,
    Unique,
    Where,
    refuse,
    size_bytes,
    unknown,
)

EngineName = Literal["vllm", "sglang", "trtllm", "custom"]
RuntimeName = Literal["process", "container"]
Method = Literal["none", "ngram", "nextn", "mtp", "eagle3", "dflash", "dflash2", "dspark", "draft"]
"""Speculative methods: what a deployment can name, and all that anything is known about."""
Objective = Literal["interactive", "throughput", "context"]
TextKind = Literal["mixed", "prose", "code", "edits", "agent", "json", "math"]

Degree = Annotated[int, Field(ge=1, le=1024)]
Context = Annotated[int, Field(ge=1, le=100_000_000)]
Concurrency = Annotated[int, Field(ge=1, le=65_536)]
Replicas = Annotated[int, Field(ge=1, le=1024)]
Arguments = tuple[OneLine, ...]
Environment = FrozenDict[EnvName, OneLine]
Pins = Annotated[tuple[NodeName, ...], Unique()]


class Parallel(Spec):
    """Number of ways in which the weights are split. The planner decides what is left out."""

    tp: Degree | None = None
    """Tensor parallel: every layer is split over this many ranks."""
    pp: Degree | None = None
    """Pipeline parallel: the layers are dealt out over this many stages."""
    ep: Degree | None = None
    """Expert parallel: the experts are dealt out over this many ranks."""


class SpeculationChoice(Spec):
    """A speculative method and its settings. What is left out, the planner decides."""

    method: Literal["auto", Method]
    """The way draft tokens are made. `auto`: the planner decides; `none`: no speculation."""
    tokens: Annotated[int, Field(ge=1, le=256)] | None = None
    """Draft tokens per step (k)."""
    draft: ModelId | None = None
    """Checkpoint that makes the drafts, where the model does not bring it."""

    def _problems(self) -> Iterator[Problem]:
        if self.tokens is not None and self.method in ("auto", "none"):
            yield Problem(("tokens",), f"given, but method {self.method} makes no drafts. Expected none.")
        if self.draft is not None and self.method in ("auto", "none", "ngram"):
            yield Problem(("draft",), f"given, but method {self.method} needs no checkpoint. Expected none.")


def _speculation(given: Any) -> Any:
    """`speculation: mtp` is short for `speculation: {method: mtp}`. Unknown methods of both are told here."""
    method = given.get("method") if isinstance(given, dict) else given
    if isinstance(method, str) and method not in ("auto", *get_args(Method)):
        refuse([Problem((), unknown("method", method, get_args(Method), also=["auto"]))])
    return {"method": given} if isinstance(given, str) else given


Speculate = Annotated[
    SpeculationChoice,
    BeforeValidator(_speculation, json_schema_input_type=Literal["auto", Method] | SpeculationChoice),
]


class Constraints(Spec):
    """Fields of a deployment that each of its variants may override."""

    engine: Literal["auto", EngineName] = "auto"
    """The engine; `auto`: the planner decides; `custom`: any command or container with declared memory."""
    context: Context | None = None
    """Longest prompt + completion of one request, tokens. Left out: the planner decides."""
    concurrency: Concurrency | None = None
    """Requests that are to decode together. Left out: the planner decides."""
    parallel: Parallel | None = None
    """How the weights are split. Left out: the planner decides."""
    speculation: Speculate = SpeculationChoice(method="auto")
    """Speculative decoding: `auto`, `none`, a method, or `{method: mtp, tokens: 3}`."""
    image: Image | None = None
    """Container image to use instead of a known one; a digest keeps it from changing under you."""
    engine_args: Arguments = ()
    """Further arguments of the engine's command line, one per item; numbers in quotes."""
    env: Environment = Field(default=FrozenDict(), repr=False)
    """Environment variables of the engine; values in quotes. They may be secret: errors do not show them."""
    nodes: Pins = ()
    """Nodes that may be used. Left out: any."""
    replicas: Replicas | None = None
    """Engine instances. Left out: the planner decides."""
    memory: MemorySize | None = None
    """Memory that is set aside, such as "24 GiB". Only `engine: custom` takes it, and needs it; others' is predicted."""

    @property
    def memory_bytes(self) -> int | None:
        """`memory` in bytes."""
        return None if self.memory is None else size_bytes(self.memory)


class VariantEntry(Spec):
    """A variant as it is written. What is left out is as in the deployment."""

    model: ModelId
    """The checkpoint: Hub id "org/name" or "org/name@revision", "builtin:NAME", or an absolute directory."""
    engine: Literal["auto", EngineName] | None = None
    """The engine of this variant."""
    context: Context | None = None
    """Longest prompt + completion of one request to this variant, tokens."""
    concurrency: Concurrency | None = None
    """Requests that are to decode together in this variant."""
    parallel: Parallel | None = None
    """How the weights of this variant are split."""
    speculation: Speculate | None = None
    """Speculative decoding of this variant."""
    image: Image | None = None
    """Container image of this variant."""
    engine_args: Arguments | None = None
    """Further arguments of this variant's engine, instead of the deployment's."""
    env: Environment | None = Field(default=None, repr=False)
    """Environment variables of this variant, on top of the deployment's."""
    nodes: Pins | None = None
    """Nodes that this variant may use."""
    replicas: Replicas | None = None
    """Engine instances of this variant."""
    memory: MemorySize | None = None
    """Memory per rank that is set aside for this variant."""


class Variant(Constraints):
    """One checkpoint with everything that holds for it: the variant's own words over the deployment's."""

    model: ModelId
    runtime: Literal["auto", RuntimeName] = "auto"
    command: Arguments = ()
    port: int | None = None
    """Where a custom workload listens; None for every other engine."""
    health: str | None = None
    """Where a custom workload says that it is well; None: it does not say where."""


class Deployment(Constraints):
    """Request to serve one public model name: a model or variants of it, and an objective."""

    name: PublicName
    """The public model name: what clients write into the `model` field of a request."""
    model: ModelId | None = None
    """The checkpoint: Hub id "org/name" or "org/name@revision", "builtin:NAME", or an absolute directory."""
    variants: tuple[VariantEntry, ...] = Field(default=(), max_length=64)
    """Unlike replicas under one name, instead of `model`: each request goes to one that can serve it."""
    objective: Objective = "interactive"
    """What to be best at: the speed of one request, the `throughput` of all, or the `context`'s length."""
    content: TextKind = "mixed"
    """Kind of text that is mostly written: it decides how many drafts are right. `code`, `edits` and `agent` repeat what the
    prompt has, so that drafts looked up in it (NGRAM) may be chosen."""
    needs: Annotated[tuple[Literal["vision", "tools"], ...], Unique()] = ()
    """What every variant must be able to do."""
    license: Literal["open", "any"] = "any"
    """`open`: only checkpoints under an open-source license."""
    keys: Annotated[tuple[KeyName, ...], Field(min_length=1), Unique()] | None = None
    """Names of the API keys that may use it. Left out: every key."""
    runtime: Literal["auto", RuntimeName] = "auto"
    """How engines run on a node: a container, or a process of an environment that is there."""
    command: Arguments = ()
    """For `engine: custom`: the command line, one argument per item; with an image, inside its container."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """For `engine: custom`: the port that it listens on."""
    health: HttpPath | None = None
    """For `engine: custom`: the path that answers 200 when it is ready, and while it is well, also at work: where it has not
    for a minute, it is started anew. Left out: /health, asked until it is ready and not again."""
    silence: Annotated[int, Field(ge=10, le=86_400)] | None = None
    """Seconds without a word after which a starting engine is taken for hung. Left out: 900, and 120 for its first token. A
    start that goes on talking has four times as long, 900 at least, and what reading its weights takes."""

    def resolved(self) -> tuple[Variant, ...]:
        """The variants with everything that holds for them, in the order they are written. At least one."""
        return tuple(self._merged(entry) for entry in self._entries())

    def _entries(self) -> tuple[VariantEntry, ...]:
        return self.variants if self.model is None else (VariantEntry(model=self.model),)

    def _merged(self, entry: VariantEntry) -> Variant:
        shared = {name: getattr(self, name) for name in Variant.model_fields if name != "model"}
        own = {name: value for name, value in entry if value is not None}
        env = FrozenDict({**self.env, **(entry.env or {})})
        return Variant(**{**shared, **own, "env": env})

    def _problems(self) -> Iterator[Problem]:
        if (self.model is None) == (not self.variants):
            found = "neither is given" if self.model is None else "both are given"
            yield Problem((), f"`model` or `variants`: {found}. Expected exactly one of them.")
            return
        variants = self.resolved()
        for index, variant in enumerate(variants):
            at: Where = ("variants", index) if self.variants else ()
            yield from _runtime_problems(variant, at)
            if variant.engine == "custom":
                yield from _custom_problems(variant, at)
        if all(variant.engine != "custom" for variant in variants):
            yield from self._only_for_custom()

    def _only_for_custom(self) -> Iterator[Problem]:
        for name in ("command", "port", "health"):
            if getattr(self, name):
                yield Problem((name,), "given, but only `engine: custom` takes it. Expected none.")


def _runtime_problems(variant: Variant, at: Where) -> Iterator[Problem]:
    if variant.runtime == "process" and variant.image:
        yield Problem((*at, "image"), "given, but `runtime: process` uses none. Expected one or the other.")


def _custom_problems(variant: Variant, at: Where) -> Iterator[Problem]:
    """Requires the declarations of a custom workload, and refuses fields that cannot apply to it."""
    if variant.memory is None:
        yield Problem((*at, "memory"), 'missing. `engine: custom` has to say what it uses, such as "24 GiB".')
    if variant.port is None:
        yield Problem(("port",), "missing. `engine: custom` has to say on which port it listens.")
    if variant.runtime == "process" and not variant.command:
        yield Problem(("command",), "missing. `engine: custom` has to say which command to run as a process.")
    if variant.runtime == "container" and not variant.image:
        yield Problem((*at, "image"), "missing. `engine: custom` has to say which image to run.")
    if variant.runtime == "auto" and not (variant.image or variant.command):
        yield Problem((*at, "image"), "missing. `engine: custom` has to say which image or command to run.")
    if variant.parallel is not None:
        yield Problem((*at, "parallel"), "given, but a custom workload is not split. Expected none.")
    if variant.speculation.method not in ("auto", "none"):
        yield Problem((*at, "speculation"), "given, but a custom workload sets its own. Expected none.")
    if variant.engine_args:
        yield Problem((*at, "engine_args"), "given for `engine: custom`. Expected them in `command`.")

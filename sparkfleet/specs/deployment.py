"""`deployments/*.yaml`: the deployment of one public model name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from sparkfleet.specs.external_endpoint import ExternalEndpoint
from sparkfleet.specs.fields import (
    AliasName,
    ArgumentText,
    Concurrency,
    Context,
    Domain,
    EndpointPath,
    EnvName,
    FrozenDict,
    HttpPath,
    ImageReference,
    KeyName,
    MemorySize,
    ModelId,
    NodeName,
    Problem,
    PublicName,
    Spec,
    Unique,
    Where,
    refuse,
    size_bytes,
    unknown,
)
from sparkfleet.specs.parallel import Parallel

PlannedEngine = Literal["vllm", "sglang", "trtllm", "llama.cpp"]
"""Engines that the planner may choose, in the order of preference if nothing else distinguishes them."""
EngineName = Literal[PlannedEngine, "custom"]
RuntimeName = Literal["process", "container"]
Method = Literal["none", "ngram", "nextn", "mtp", "eagle3", "dflash", "dflash2", "dspark", "draft"]
"""Speculative methods: what a deployment can name, and all that anything is known about."""
Objective = Literal["interactive", "throughput", "context"]
TextKind = Literal["mixed", "prose", "code", "edits", "agent", "json", "math"]

Replicas = Annotated[int, Field(ge=1, le=1024)]
Arguments = tuple[ArgumentText, ...]
Environment = FrozenDict[EnvName, ArgumentText]
Pins = Annotated[tuple[NodeName, ...], Unique()]


class SpeculationChoice(Spec):
    """A speculative method and its settings. The planner sets the fields that are left out."""

    method: Literal["auto", Method]
    """The way draft tokens are made. `auto`: the planner decides; `none`: no speculation."""
    tokens: Annotated[int, Field(ge=1, le=256)] | None = None
    """Draft tokens per step (k)."""
    draft: ModelId | None = None
    """Checkpoint that proposes the draft tokens, if the model has none for it."""

    def _problems(self) -> Iterator[Problem]:
        if self.tokens is not None and self.method in ("auto", "none"):
            yield Problem(("tokens",), f"given, but method {self.method} has no draft tokens. Expected none.")
        if self.draft is not None and self.method in ("auto", "none", "ngram"):
            yield Problem(("draft",), f"given, but method {self.method} needs no checkpoint. Expected none.")


def _speculation(given: Any) -> Any:
    """Expand `speculation: mtp` to `speculation: {method: mtp}`, and refuse unknown methods in both forms."""
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
    """Requests that decode together in all replicas: each is sized for its share, those of `engine: custom` for all. Left
    out: the planner decides."""
    parallel: Parallel | None = None
    """Degrees in which the weights are split. Left out: the planner decides."""
    speculation: Speculate = SpeculationChoice(method="auto")
    """Speculative decoding: `auto`, `none`, a method, or `{method: mtp, tokens: 3}`."""
    image: ImageReference | None = None
    """Container image to use instead of a known one; with a digest it cannot change between starts."""
    engine_args: Arguments = ()
    """Further arguments of the engine's command line, one per item."""
    env: Environment = Field(default=FrozenDict(), repr=False)
    """Environment variables of the engine; true and false in quotes. Values may be secret: errors do not show them."""
    trust_remote_code: bool = False
    """Lets the engine run code of the checkpoint. Requires a model that cannot change: "org/name@commit" with the 40 hex
    digits of a commit, or a directory; and the same of its draft."""
    nodes: Pins = ()
    """Nodes that may be used. Left out: any."""
    replicas: Replicas | None = None
    """Engine instances. Left out: the planner decides."""
    memory: MemorySize | None = None
    """Memory to reserve per rank, such as "24 GiB". Required by `engine: custom`, and only for it: others' is predicted."""

    @property
    def memory_bytes(self) -> int | None:
        """`memory` in bytes."""
        return None if self.memory is None else size_bytes(self.memory)


class VariantEntry(Spec):
    """A variant in its file. Fields that are left out are those of the deployment."""

    model: ModelId
    """The checkpoint: Hub id "org/name" or "org/name@revision", with ":TAG" for a GGUF model; "builtin:NAME"; or an absolute
    path, of a directory or a GGUF file."""
    engine: Literal["auto", EngineName] | None = None
    """The engine of this variant."""
    context: Context | None = None
    """Longest prompt + completion of one request to this variant, tokens."""
    concurrency: Concurrency | None = None
    """Requests that decode together in all replicas of this variant."""
    parallel: Parallel | None = None
    """Degrees in which the weights of this variant are split."""
    speculation: Speculate | None = None
    """Speculative decoding of this variant."""
    image: ImageReference | None = None
    """Container image of this variant."""
    engine_args: Arguments | None = None
    """Further arguments of this variant's engine, instead of the deployment's."""
    env: Environment | None = Field(default=None, repr=False)
    """Environment variables of this variant, on top of the deployment's."""
    trust_remote_code: bool | None = None
    """Lets the engine run code of this variant's checkpoint."""
    nodes: Pins | None = None
    """Nodes that this variant may use."""
    replicas: Replicas | None = None
    """Engine instances of this variant."""
    memory: MemorySize | None = None
    """Memory to reserve per rank of this variant."""


class Variant(Constraints):
    """One checkpoint with all its settings: those of the variant over those of the deployment."""

    model: ModelId
    runtime: Literal["auto", RuntimeName] = "auto"
    media_domains: tuple[str, ...] = ()
    kv_disk: MemorySize | None = None
    command: Arguments = ()
    port: int | None = None
    """Port of a custom workload; None for every other engine."""
    health: str | None = None
    """Path of a custom workload's health check; None: not given."""
    stage_model: bool = False
    """True if a custom workload's model is copied to its node."""

    @property
    def kv_disk_bytes(self) -> int | None:
        """`kv_disk` in bytes."""
        return None if self.kv_disk is None else size_bytes(self.kv_disk)


class Deployment(Constraints):
    """Request to serve one public model name: a model or variants of it, and an objective."""

    name: PublicName
    """The public model name, for the `model` field of requests."""
    model: ModelId | None = None
    """The checkpoint: Hub id "org/name" or "org/name@revision", with ":TAG" for a GGUF model; "builtin:NAME"; or an absolute
    path, of a directory or a GGUF file."""
    variants: tuple[VariantEntry, ...] = Field(default=(), max_length=64)
    """Different checkpoints under one name, instead of `model`: each request goes to one that can serve it."""
    objective: Objective = "interactive"
    """The aim: `interactive` speed of one request, `throughput` of all requests, or `context` length."""
    content: TextKind = "mixed"
    """Kind of text that is mostly written: it decides how many drafts are right. `code`, `edits` and `agent` repeat what the
    prompt has, so that drafts looked up in it (NGRAM) may be chosen."""
    needs: Annotated[tuple[Literal["vision", "tools"], ...], Unique()] = ()
    """Capabilities that every variant must have."""
    media_domains: Annotated[tuple[Domain, ...], Unique()] = ()
    """Hosts from which requests may name images, video and sound by URL. Left out: none, so that requests bring them as
    `data:` URLs, and no client makes an engine fetch anything."""
    aliases: Annotated[tuple[AliasName, ...], Unique(), Field(max_length=64)] = ()
    """Further names under which clients may ask for it, such as gpt-4o. A deployment of that name has precedence."""
    endpoints: Annotated[tuple[EndpointPath, ...], Unique()] = ()
    """Paths of the engine that clients may use beside those of OpenAI's and Anthropic's APIs; `/*` at the end: all below."""
    license: Literal["open", "any"] = "any"
    """`open`: only checkpoints under an open-source license."""
    keys: Annotated[tuple[KeyName, ...], Field(min_length=1), Unique()] | None = None
    """Names of the API keys that may use it. Left out: every key."""
    runtime: Literal["auto", RuntimeName] = "auto"
    """Run engines in a container, or as a process of an environment that is installed on the node."""
    command: Arguments = ()
    """For `engine: custom`: the command line, one argument per item; with an image, inside its container. It has to listen
    on the address in $SPARKFLEET_HOST, 127.0.0.1, and on no other: one that other machines reach is stopped.
    It must not require an API key of its own: the endpoint checks the keys of clients."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """For `engine: custom`: the port that it listens on, also in $SPARKFLEET_PORT."""
    health: HttpPath | None = None
    """For `engine: custom`: the path that returns 200 when the workload is ready, and as long as it is healthy, also under
    load. After a minute without a 200 it is restarted. Left out: /health, probed only until the workload is ready; then it
    is restarted if its process has been stopped by a signal for a minute."""
    stage_model: bool = False
    """For `engine: custom`: copy the model to the node before the start, as for other engines; $SPARKFLEET_MODEL_PATH is its
    directory there. Left out: `model` is a name that the command may use, and the image brings or fetches its weights."""
    silence: Annotated[int, Field(ge=10, le=86_400)] | None = None
    """Seconds without output after which a starting engine is considered hung. Left out: 900, and 120 for its first token. A
    start that keeps writing to its log has four times as long, at least 900, plus the time to read its weights."""

    on_demand: bool = False
    """Start with the first request, which waits for that, and give the memory to others of this kind that get requests
    meanwhile: several models that do not fit at once then share one Spark. `idle` ends it without a request."""
    idle: Annotated[int, Field(ge=10, le=31_536_000)] | None = None
    """For `on_demand`: seconds without a request after which its engines end. Left out: they go on until another
    deployment needs their memory."""
    standby: bool | None = None
    """Go on without a node that has been lost for about four minutes. Left out: a group of several nodes goes on with those
    that it has left, if the model fits there. `true`: memory and weights are kept for each group on other nodes, too.
    `false`: it waits for its node."""
    kv_disk: MemorySize | None = None
    """Keep the KV cache of prompts on the node's disk too, up to this size, such as "100 GB": long prompts come back from
    there after a restart, a swap or an eviction. vLLM on one Spark; it takes memory for one whole request on its way. The
    files hold what was in the prompts. Left out: none is kept."""
    external: Annotated[tuple[ExternalEndpoint, ...], Field(max_length=16)] = ()
    """Endpoints outside the fleet for requests that its groups cannot serve, in this order: prompts leave the fleet."""
    loop_tokens: Annotated[int, Field(ge=64, le=100_000)] | None = None
    """Tokens (of four characters) of the same text again and again after which a stream is ended with an error: small and
    heavily quantised models fall into such loops. Left out: never."""
    replay: bool = False
    """Continue a greedy stream (temperature 0) whose group is lost on another group of the same weights, from the tokens
    that were sent, if that is provably the same text: vLLM, one choice, no tools, stop strings or log probabilities.
    Otherwise, and if left out, it ends with an error event."""

    def resolved(self) -> tuple[Variant, ...]:
        """The variants with all their settings, in the order of the file. At least one."""
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
        if self.idle is not None and not self.on_demand:
            yield Problem(("idle",), "given, but only `on_demand: true` has it. Expected none.")
        if self.on_demand and self.standby:
            yield Problem(
                ("standby",),
                "given with `on_demand: true`, which keeps no memory on any node. Expected one or the other.",
            )
        if self.on_demand and self.external:
            yield Problem(
                ("external",),
                "given with `on_demand: true`: its requests wait for its start. Expected one or the other.",
            )
        if self.name in self.aliases:
            where: Where = ("aliases", self.aliases.index(self.name))
            yield Problem(where, f"{self.name} is its name already. Expected further names.")
        variants = self.resolved()
        for index, variant in enumerate(variants):
            at: Where = ("variants", index) if self.variants else ()
            yield from _runtime_problems(variant, at)
            if variant.engine == "custom":
                yield from _custom_problems(variant, at)
        if all(variant.engine != "custom" for variant in variants):
            yield from self._only_for_custom()

    def _only_for_custom(self) -> Iterator[Problem]:
        for name in ("command", "port", "health", "stage_model"):
            if getattr(self, name):
                yield Problem((name,), "given, but only `engine: custom` has it. Expected none.")


def _runtime_problems(variant: Variant, at: Where) -> Iterator[Problem]:
    if variant.runtime == "process" and variant.image:
        yield Problem((*at, "image"), "given, but `runtime: process` has none. Expected one or the other.")


def _custom_problems(variant: Variant, at: Where) -> Iterator[Problem]:
    """Missing declarations of a custom workload, and fields that cannot apply to it."""
    if variant.memory is None:
        yield Problem(
            (*at, "memory"), 'missing. `engine: custom` requires the memory per rank, such as "24 GiB".'
        )
    if variant.port is None:
        yield Problem(("port",), "missing. `engine: custom` requires the port on which it listens.")
    if variant.runtime == "process" and not variant.command:
        yield Problem(("command",), "missing. `engine: custom` requires the command of the process.")
    if variant.runtime == "container" and not variant.image:
        yield Problem((*at, "image"), "missing. `engine: custom` requires the image of the container.")
    if variant.runtime == "auto" and not (variant.image or variant.command):
        yield Problem((*at, "image"), "missing. `engine: custom` requires an image or a command.")
    if variant.parallel is not None:
        yield Problem((*at, "parallel"), "given, but a custom workload is not split. Expected none.")
    if variant.speculation.method not in ("auto", "none"):
        yield Problem(
            (*at, "speculation"), "given, but a custom workload has its own settings. Expected none."
        )
    if variant.kv_disk is not None:
        yield Problem(("kv_disk",), "given, but a custom workload has its own cache. Expected none.")
    if variant.engine_args:
        yield Problem(
            (*at, "engine_args"), "given for `engine: custom`. Expected these arguments in `command`."
        )


def drafts_of(specs: Iterable[Deployment]) -> tuple[str, ...]:
    """The drafts that deployments name. A name alone identifies none: a head has the name of its target."""
    found = (variant.speculation.draft for spec in specs for variant in spec.resolved())
    return tuple(dict.fromkeys(name for name in found if name and not name.startswith("builtin:")))

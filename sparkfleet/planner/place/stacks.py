"""Options for candidates: stacks (engine and image) and splits of a model. Pure.

Rules and speed are not considered yet. Options that are impossible without them are rejected here, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple, get_args

from sparkfleet.checkpoints.arch.layers import LayerKind
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.knowledge.engines.engine_flags import are_known
from sparkfleet.knowledge.engines.images import IMAGES, DiskTables, Image, images_of
from sparkfleet.knowledge.engines.method_support import counts_beam, lacks, support_of
from sparkfleet.knowledge.models.speculators import speculator_with
from sparkfleet.knowledge.published.left_out import left_out_families
from sparkfleet.knowledge.versions import Truth, parse_range, parse_version
from sparkfleet.perf.latency.factor_keys import release_of
from sparkfleet.perf.prediction import Speculation, Split
from sparkfleet.perf.predictor import Predictor
from sparkfleet.planner.place.context_split import context_split_fault
from sparkfleet.planner.types.plan import ENGINE_LABELS, Rejection
from sparkfleet.specs.deployment import EngineName, PlannedEngine, RuntimeName, Variant

ENGINES: tuple[PlannedEngine, ...] = get_args(PlannedEngine)

MADE_FOR = {
    "aeon-ultimate": "*aeon*",
    "aeon-gemma-dflash": "*gemma-4*",
    "anemll-dspark": "*deepseek-v4-*",
    "pulsar-pr41834": "*deepseek-v4-*",
    "miaai-glm53-exl3": "*glm-5.3*",
    "lmsys-sglang-qwen38-27b": "*qwen3.8-27b*",
    "lmsys-sglang-qwen38-flash-next": "*qwen3.8-flash-next*",
    "eugr-node-mxfp4": "*gpt-oss*",
    "lmsys-sglang-spark": "*gpt-oss*",
    "eugr-b12x": "*qwen3.8-flash-next*|*deepseek-v4-flash-0731*|*deepseek-v4-flash-vision*|*deepseek-v4.1*|"
    "*glm-5.3-flash-nvfp4-spark*",
    "eugr-spark-vllm-20260704": "*gemma-4*",
    "gitcommit90-glm53-exl3": "*glm-5.3-flash*",
    "tonyd2wild-glm53-nvfp4": "*glm-5.3-flash*",
    "lmsys-sglang-0.5.21": "*qwen3.8-flash-next*",
    "lmsys-sglang-v4f-2dgx": "*deepseek-v4-flash*",
    "miaai-dsv41-sglang": "*deepseek-v4.1*",
}
"""Images that were built for one family, or run with one; nothing is published about others on them (images.yaml)."""

OWN_BUILDS = ("exl3",)
"""Formats that no release of an engine loads: images that were patched for them do."""
STATUS_ORDER = ("works", "limited", "unproven", "broken")
TRUST = {"works": 1.0, "limited": 0.95, "unproven": 0.95, "broken": 0.0}
UNSEEN = 0.95
"""Discount of an image by its status, and if nothing is published about the quantisation on it. Small: what was published is
counted by models and methods, not by images."""


class Stack(NamedTuple):
    """An engine as it can be started: an image, or an environment that is on the nodes."""

    engine: EngineName
    version: str
    """"" if it is not known."""
    runtime: RuntimeName
    image: str | None = None
    python: str = "python3"
    known: Image | None = None
    """The image's entry, if there is exactly one."""
    evidence: float = 1.0
    """Discount for lack of evidence, at most 1. Affects the ranking only."""

    def disk_tables(self, checkpoint: Checkpoint) -> DiskTables | None:
        """Settings with which it reads the n-gram tables of a model from the disk; None if it has none, or does not."""
        if self.known is None or not checkpoint.table_bytes:
            return None
        return self.known.disk_tables(checkpoint.model_type)

    @property
    def release(self) -> str:
        """The release as factors of speed name it."""
        return release_of(self.image or "", self.version)

    @property
    def name(self) -> str:
        """The stack in words; with the image if the version is not known."""
        if self.version or not self.image:
            return f"{ENGINE_LABELS[self.engine]} {self.version}".strip()
        return f"{ENGINE_LABELS[self.engine]} ({self.image.partition('@')[0].rpartition('/')[2]})"


class StackOptions(NamedTuple):
    """Options to try, best first, and those that are excluded."""

    options: tuple[Stack, ...]
    rejected: tuple[Rejection, ...]


# --- engines and images -----------------------------------------------------------------------------------------------


def stacks_for(variant: Variant, engine: EngineName, quant: str, nodes: Sequence[NodeFacts]) -> StackOptions:
    """The stacks on which `engine` could run a checkpoint of that quantisation, best evidence first."""
    if variant.image:
        return StackOptions(tuple(_pinned_image(variant, engine)), ())
    homes = tuple(_homes(variant, engine, nodes))
    if variant.runtime == "process":
        gone = Rejection(
            what=ENGINE_LABELS[engine], reason="is not installed on these nodes as a process", why="node"
        )
        return StackOptions(homes, () if homes else (gone,))
    if quant in OWN_BUILDS:
        homes = ()
    found = _known_images(engine, quant, variant.model.lower(), seen=not left_out_families())
    return StackOptions((*homes, *found.options), found.rejected)


def _pinned_image(variant: Variant, engine: EngineName) -> Iterator[Stack]:
    image = variant.image or ""
    builds = images_of(image)
    inside = builds[0].engine if builds else _engine_in_name(image)
    if engine not in (inside, variant.engine) or (builds and engine != inside):
        return
    plain = {(build.engine_version or "").partition(" ")[0] for build in builds}
    version = builds[0].engine_version or "" if len(builds) == 1 else plain.pop() if len(plain) == 1 else ""
    # A deployment that pins a tag that was moved may have any of its builds: then the version has no build.
    alike = len({build.engine_version for build in builds}) == 1
    yield Stack(engine, version, "container", image, known=builds[-1] if alike else None)


def _engine_in_name(image: str) -> EngineName | None:
    """The engine in the name of an unknown image; None if the name contains none, or several."""
    words: dict[str, EngineName] = {
        "vllm": "vllm",
        "sglang": "sglang",
        "tensorrt": "trtllm",
        "trtllm": "trtllm",
        "llama.cpp": "llama.cpp",
        "llamacpp": "llama.cpp",
    }
    found = {engine for word, engine in words.items() if word in image.lower()}
    return found.pop() if len(found) == 1 else None


def _homes(variant: Variant, engine: EngineName, nodes: Sequence[NodeFacts]) -> Iterator[Stack]:
    """Environments with a CUDA build of the engine; all nodes have to have the same, at the same place."""
    homes = {node.engines.get(engine) for node in nodes}
    home = homes.pop() if len(homes) == 1 else None
    if home is not None and "cpu" not in home.version and variant.runtime != "container":
        yield Stack(engine, home.version, "process", python=home.python)


def images_by_name(model: str, quant: str) -> tuple[Image, ...]:
    """Images that were made for the model's family and run its quantisation, and that a plan takes only by name."""
    return tuple(
        image
        for image in IMAGES.content.images
        if image.by_name
        and image.status != "broken"
        and quant in image.quants
        and _made_for(image, model.lower())
    )


def may_requantize(model: str, quant: str, engine: EngineName) -> bool:
    """True if published rates of an engine may be of a build that stores the model's weights in other bits.

    There is one, and a plan takes it only by name."""
    return any(one.requantizes and one.engine == engine for one in images_by_name(model, quant))


def unproven_images(model: str, quant: str, engine: EngineName) -> tuple[Image, ...]:
    """Images of an engine, of a known release, that run a quantisation of the model as far as that is known, and that nobody
    has published a run of."""
    options = _known_images(engine, quant, model.lower(), seen=not left_out_families()).options
    known = (stack.known for stack in options if stack.version)
    return tuple(image for image in known if image is not None and image.status == "unproven")


def _made_for(image: Image, model: str) -> bool:
    """True if it was built for the model's family, not for all."""
    return any(fnmatchcase(model, family) for family in MADE_FOR.get(image.id, "").split("|"))


@lru_cache(maxsize=1024)
def _known_images(engine: EngineName, quant: str, model: str, *, seen: bool) -> StackOptions:
    """The images of an engine; `seen` False: without what was seen of the model's family on those that were made for it."""
    options: list[tuple[tuple[object, ...], Stack]] = []
    rejected: list[Rejection] = []
    for image in IMAGES.content.images:
        made_for = MADE_FOR.get(image.id, "*").split("|")
        elsewhere = not any(fnmatchcase(model, family) for family in made_for)
        if image.engine != engine or elsewhere:
            continue
        if image is not images_of(image.image)[-1]:
            continue  # the tag has been moved since: a pull gives the last build
        for_model = made_for != ["*"]
        known = _untried(image) if for_model and not seen else image
        stack = Stack(engine, image.engine_version or "", "container", image.image, known=known)
        if image.by_name:
            reason = f"{image.by_name}; to use it, set `image:`"
            rejected.append(Rejection(what=image.image, reason=reason, source=image.sources[0]))
        elif image.status == "broken":
            reason = image.note or "does not work"
            rejected.append(Rejection(what=image.image, reason=reason, source=image.sources[0]))
        elif quant in image.quants or not (image.quants or quant in OWN_BUILDS):
            options.append(
                (_evidence(known, quant, for_model), stack._replace(evidence=_trust(known, quant)))
            )
    options.sort(key=lambda item: item[0])
    return StackOptions(tuple(stack for _, stack in options), tuple(rejected))


def _untried(image: Image) -> Image:
    """The image as if nobody had run it."""
    return image.model_copy(update={"status": "unproven", "methods": (), "quants": ()})


def _evidence(image: Image, quant: str, for_model: bool) -> tuple[object, ...]:
    """Sorts images: seen to work with the quantisation, a known version or seen with the family, no known limits, newest.

    A version that is not known escapes every rule about versions, and may be older than the model: it is no better than a
    release that nobody has run yet. Of releases that nobody has run, one of which the flags were read comes before a newer
    one. A month without a day is before its days.
    """
    year, month, day = (*map(int, image.date.split("-")), 0, 0)[:3]
    version = image.engine_version or ""
    vague = not version and not for_model
    unread = image.status == "unproven" and not are_known(image.engine, version)
    numbers = tuple(-one for one in ordered.release) if (ordered := parse_version(version)) else ()
    age = (-year, -month, -day)
    return (
        quant not in image.quants,
        vague,
        STATUS_ORDER.index(image.status),
        unread,
        age,
        not for_model,
        numbers,
    )


def _trust(image: Image, quant: str) -> float:
    return TRUST[image.status] * (1.0 if quant in image.quants else UNSEEN)


def in_order(stacks: Sequence[Stack], speculation: Speculation) -> tuple[Stack, ...]:
    """The stacks that have the method and load its draft, those first on which it was seen to work.

    NGRAM and plain decoding need no evidence.
    """
    method = speculation.method
    able = tuple(stack for stack in stacks if not unable(stack, speculation))
    if method in ("none", "ngram"):
        return able
    return tuple(sorted(able, key=lambda stack: proves(stack, method) is not True))


def unable(stack: Stack, speculation: Speculation) -> str:
    """Reason why the release of a stack cannot speculate so, or not otherwise than by another name of it.

    "" if it can, was seen to, or its version is not known.
    """
    method = speculation.method
    if speculation.topk > 1 and speculation.beam_tokens is not None and not counts_beam(stack.version):
        return f"{stack.name} starts NEXTN with the same flags"
    if method == "none" or (proves(stack, method) is True and method != "ngram"):
        return ""
    if lacks(stack.engine, stack.version, method):
        support = support_of(stack.engine, method)
        since = f" has no {method.upper()}" + (f": it came with {support.since}" if support else "")
        return f"{stack.name}{since}"
    one = speculator_with(speculation.draft) if speculation.draft else None
    first = next((since for engine, since in one.since if engine == stack.engine), None) if one else None
    if first is not None and parse_range(f"<{first}").contains(stack.version) is Truth.YES:
        return f"{stack.name} does not load {speculation.draft}: {first} and later do"
    return ""


def proves(stack: Stack, method: str) -> bool | None:
    """Was the method seen to work on the stack? None: nothing is published."""
    if method in ("none", "ngram"):
        return True
    if stack.known is None or not stack.known.methods:
        return None
    return method in stack.known.methods


# --- splits -----------------------------------------------------------------------------------------------------------


def splits_for(variant: Variant, predictor: Predictor, ranks: int) -> tuple[Split, ...]:
    """Ways to split the model over `ranks` nodes that obey the deployment, in the order of preference."""
    found = [split for split in _splits(variant, predictor, ranks) if _obeys(variant, split)]
    return tuple(dict.fromkeys(found))


def _splits(variant: Variant, predictor: Predictor, ranks: int) -> Iterator[Split]:
    checkpoint = predictor.checkpoint
    dcp = (variant.parallel and variant.parallel.dcp) or 1  # nothing else proposes more (decision 156)
    if checkpoint.gguf is not None and ranks > 1:
        return
    layers = sum(group.layers for group in checkpoint.layers)
    for pp in (1, 2, 3, 4, 8):
        if ranks % pp == 0 and pp <= layers:
            tp = ranks // pp
            # One that is asked for is left to the rules: there are images that pad the heads.
            wanted = variant.parallel is not None and variant.parallel.tp == tp
            if (_divides_heads(checkpoint, tp) or wanted) and not context_split_fault(checkpoint, tp, dcp):
                yield Split(tp, pp, 1, dcp)
                if checkpoint.experts and tp > 1 and checkpoint.experts % tp == 0:
                    yield Split(tp, pp, tp, dcp)


def _divides_heads(checkpoint: Checkpoint, tp: int) -> bool:
    """True if attention can be split `tp` ways: query heads divided, KV heads divided or copied."""
    groups = [group for group in checkpoint.layers if group.kind is not LayerKind.LINEAR]
    return all(
        group.query_heads % tp == 0
        and (group.kv_heads == 0 or group.kv_heads % tp == 0 or tp % group.kv_heads == 0)
        for group in groups
    )


def _obeys(variant: Variant, split: Split) -> bool:
    wanted = variant.parallel
    if wanted is None:
        return True
    pairs = ((wanted.tp, split.tp), (wanted.pp, split.pp), (wanted.ep, split.ep))
    return all(required is None or required == have for required, have in pairs)

"""Finds the facts of checkpoints: on this machine, on the nodes, at the Hub, or in what is known by name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from sparkfleet.checkpoints.checkpoint import Checkpoint, hub_cache, read_checkpoint
from sparkfleet.checkpoints.io.hub_cache import cached_snapshot, check_name
from sparkfleet.checkpoints.remote_metadata import MetadataRequest, Outline, read_outline
from sparkfleet.errors import FactError, SparkfleetError
from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.knowledge.known_models import known_checkpoint, load_models
from sparkfleet.planner.search.planner import drafts_of
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.metadata import ask_outlines
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.inventory import Inventory
from sparkfleet.staging.hub_outline import AtHub, at_hub

Found = Checkpoint | FactError

Told = tuple[str, Outline | SparkfleetError | None]
"""A node, and what it said of a checkpoint: None if it has nothing of it."""


def checkpoints_of(specs: Iterable[Deployment], facts: Iterable[NodeFacts]) -> dict[str, Checkpoint]:
    """The facts of every checkpoint that planning needs, without asking nodes: none where no node has a GPU, and for
    custom workloads. Of drafts those whose weights are known: the planner does without.

    Raises:
        FactError: a checkpoint is nowhere to be found, or not understood.
    """
    specs = tuple(specs)
    needed = _needed(specs, facts)
    drafts = {name: _whole(name) for name in drafts_of(specs)} if needed else {}
    return {model: find_checkpoint(model) for model in needed} | {
        name: found for name, found in drafts.items() if found is not None
    }


async def checkpoints_on(
    specs: Sequence[Deployment],
    facts: Iterable[NodeFacts],
    inventory: Inventory,
    channels: Mapping[str, Channel],
) -> dict[str, Checkpoint]:
    """The same, where this machine lacks the weights from the nodes.

    Raises:
        FactError: a checkpoint is nowhere to be found, or not understood.
    """
    needed = _needed(specs, facts)
    drafts = drafts_of(specs) if needed else ()
    wanted = {model: places_of(model, specs, inventory) for model in (*needed, *drafts)}
    found = await search(wanted, inventory, channels)
    known = {name: one for name in drafts if isinstance(one := found[name], Checkpoint) and one.weights_known}
    return known | {model: _value(found[model]) for model in needed}


def models_of(specs: Iterable[Deployment]) -> tuple[str, ...]:
    """The checkpoints of deployments; custom workloads and embedded models have none to look for."""
    return tuple(
        dict.fromkeys(
            variant.model
            for spec in specs
            for variant in spec.resolved()
            if variant.engine != "custom" and not variant.model.startswith("builtin:")
        )
    )


def places_of(model: str, specs: Iterable[Deployment], inventory: Inventory) -> tuple[str, ...]:
    """Nodes to look at for a model: those that it may run on, then the others, from which it would be copied to them."""
    pinned = (
        node
        for spec in specs
        for variant in spec.resolved()
        if variant.model == model
        for node in variant.nodes or spec.nodes
    )
    return tuple(node for node in dict.fromkeys((*pinned, *inventory.nodes)) if node in inventory.nodes)


def find_checkpoint(model: str) -> Checkpoint:
    """The facts of one checkpoint: of weights on this machine, else at the Hub, else of what is known by name.

    Raises:
        FactError: nothing is known about it, or it is damaged.
    """
    here = _here(model)
    return _value(_settled(model, here, (), _at_hub(model, here, ())))


def whole_here(model: str) -> Checkpoint | None:
    """The facts of weights on this machine; None if they are not here, or cannot be read."""
    here = _here(model)
    return here if isinstance(here, Checkpoint) and _is_whole(here) else None


def _whole(model: str) -> Checkpoint | None:
    """The facts of weights on this machine or at the Hub; None if they are on neither, or cannot be read."""
    found = whole_here(model) or at_hub(model).checkpoint
    return found if _is_whole(found) else None


async def search(
    wanted: Mapping[str, Sequence[str]], inventory: Inventory, channels: Mapping[str, Channel]
) -> dict[str, Found]:
    """The facts of checkpoints, or why there are none: on this machine, on nodes in their order, at the Hub, by name.

    Nodes are asked only for what this machine does not have with its weights; all of them at once, each for everything.
    The Hub is asked for what none of them has, unless HF_HUB_OFFLINE is set.

    Args:
        wanted: names of nodes to look at, by model.
        inventory: says which nodes are this machine.
        channels: to the nodes.
    """
    here = {model: await asyncio.to_thread(_here, model) for model in wanted}
    asked = {model: one for model in wanted if (one := _to_ask(model, here[model])) is not None}
    nodes = dict.fromkeys(node for model in asked for node in wanted[model])
    remote = {node: channels[node] for node in nodes if not inventory.nodes[node].is_local}
    answers = await ask_outlines(remote, tuple(asked.values())) if asked else {}
    told = {
        model: tuple(_told(node, answers[node], at) for node in wanted[model] if node in answers)
        for at, model in enumerate(asked)
    }
    read = {
        model: await asyncio.to_thread(_read_until_whole, model, here[model], told.get(model, ()))
        for model in wanted
    }
    hub = {model: await asyncio.to_thread(_at_hub, model, here[model], read[model]) for model in wanted}
    return {
        model: _settled(model, here[model], told.get(model, ()), hub[model], read[model]) for model in wanted
    }


def _needed(specs: Iterable[Deployment], facts: Iterable[NodeFacts]) -> tuple[str, ...]:
    return () if all(node.gpu is None for node in facts) else models_of(specs)


def _told(node: str, answer: Sequence[Outline | None] | SparkfleetError, at: int) -> Told:
    return node, answer if isinstance(answer, SparkfleetError) else answer[at]


def _value(found: Found) -> Checkpoint:
    if isinstance(found, FactError):
        raise found
    return found


def _here(model: str) -> Found | None:
    """Checkpoint on this machine; None if it has none."""
    name, _, revision = model.partition("@")
    try:
        if model.startswith("/"):
            return read_checkpoint(Path(model)) if os.path.isdir(model) else None
        cache = hub_cache(os.environ, Path.home())
        check_name(name, revision or "main")
        found = cached_snapshot(name, revision or "main", cache)
        return None if found is None else read_checkpoint(found, id=name)
    except FactError as error:
        return error


def _is_whole(found: Found | None) -> bool:
    return isinstance(found, Checkpoint) and found.weights_known


def _to_ask(model: str, here: Found | None) -> MetadataRequest | None:
    """Metadata to request from nodes; None if this machine has the weights, or the name is invalid."""
    if _is_whole(here):
        return None
    try:
        return MetadataRequest.of(model)
    except FactError:
        return None


# --- which of them counts ---------------------------------------------------------------------------------------------


def _settled(
    model: str, here: Found | None, told: Sequence[Told], hub: AtHub, there: Sequence[Found] = ()
) -> Found:
    """Weights count more than a config, this machine more than a node, and both more than the Hub.

    What is damaged on this machine is an error if no node has it whole; what is damaged on a node (a download may be
    under way) only if neither the Hub nor its name tells more.
    """
    whole = next(filter(_is_whole, (here, *there, hub.checkpoint)), None)
    if whole is not None:
        return whole
    config = next((one for one in there if isinstance(one, Checkpoint)), None)
    found = here or _known(model) or config or hub.checkpoint
    if isinstance(found, Checkpoint):
        return _with_reason(found, hub)
    return found or next(iter(there), None) or _nowhere(model, told, hub)


def _with_reason(found: Checkpoint, hub: AtHub) -> Checkpoint:
    """A checkpoint whose sizes are estimates, with the reason why the Hub did not tell them, if it was asked."""
    if found.origin or hub.reason is None:
        return found
    return found.model_copy(update={"origin": f"config alone, estimated: {hub.reason.what}"})


def _at_hub(model: str, here: Found | None, there: Sequence[Found]) -> AtHub:
    """The Hub's answer, if nothing that was found has the weights; what is damaged here is mended here first."""
    if isinstance(here, FactError) or any(map(_is_whole, (here, *there))):
        return AtHub()
    return at_hub(model)


def _known(model: str) -> Checkpoint | None:
    return None if model.startswith("/") else known_checkpoint(model.partition("@")[0])


def _read_until_whole(model: str, here: Found | None, told: Sequence[Told]) -> tuple[Found, ...]:
    """Metadata of the nodes, up to the first with the weights."""
    there: list[Found] = []
    for node, outline in told:
        if any(map(_is_whole, (here, *there))):
            break
        if isinstance(outline, Outline):
            there.append(_read(model, node, outline))
    return tuple(there)


def _read(model: str, node: str, outline: Outline) -> Found:
    try:
        return read_outline(outline, MetadataRequest.of(model), node)
    except FactError as error:
        return error


# --- where nothing was found ------------------------------------------------------------------------------------------


def _nowhere(model: str, told: Sequence[Told], hub: AtHub) -> FactError:
    looked = _words(["this machine", *(node for node, one in told if one is None)])
    silent = (
        f"{node} could not be asked: {one.what.removeprefix(f'{node}: ').rstrip('.')}."
        for node, one in told
        if isinstance(one, SparkfleetError)
    )
    asked = () if hub.reason is None else (hub.reason.what,)
    means = " ".join((*silent, *asked)) or "Nothing is known about this model."
    if model.startswith("/"):
        return FactError(f"{model}: is not a directory on {looked}.", means=means, do=_put(bool(told)))
    name, _, revision = model.partition("@")
    what = f"{name} (revision {revision or 'main'}) is not in the Hub's cache on {looked}, and not known by name."
    remedy = f"{hub.reason.do} " if hub.reason is not None and hub.reason.do else ""
    return FactError(what, means=means, do=f"{remedy}{_bring(model, bool(told))}")


def _put(asked: bool) -> str:
    if asked:
        return "Give the directory that holds config.json on a node, or copy it there."
    return (
        "Give the directory that holds config.json. Nodes are asked if there is an inventory and no --assume."
    )


def _bring(model: str, asked: bool) -> str:
    name, _, revision = model.partition("@")
    names = [
        pattern
        for known in load_models()
        for pattern in known.match
        if "*" not in pattern and "[" not in pattern
    ]
    near = get_close_matches(name, names, n=2, cutoff=0.6)
    also = f" Or did you mean {' or '.join(near)}?" if near else ""
    pull = f"Run `sparkfleet models pull {model}` for the nodes, or " if asked else "Run "
    download = f"hf download {name}{f' --revision {revision}' if revision else ''}"
    return (
        f"{pull}`{download}` for this machine (its config.json alone is enough for a plan), "
        f"or give the directory of the checkpoint.{also}"
    )


def _words(places: Sequence[str]) -> str:
    return places[0] if len(places) == 1 else f"{', '.join(places[:-1])} or {places[-1]}"

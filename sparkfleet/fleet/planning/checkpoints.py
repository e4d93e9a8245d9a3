"""Finds the facts of checkpoints: on this machine, on the nodes, at the Hub, or by name in `knowledge/models/`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sparkfleet.checkpoints.arch.draft_layers import draft_method
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.checkpoint_reader import read_checkpoint
from sparkfleet.checkpoints.io.hub_cache import cached_snapshot, check_name, hub_cache
from sparkfleet.checkpoints.remote_metadata import MetadataRequest, Outline, read_outline
from sparkfleet.errors import FactError, SparkfleetError
from sparkfleet.fleet.planning.settled_checkpoint import Found, NodeAnswer, is_whole, settled
from sparkfleet.fleet.session import Session
from sparkfleet.hostfacts.node import NodeFacts
from sparkfleet.knowledge.models.speculators import speculator_with
from sparkfleet.planner.types.cpu_model import CpuModel
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.metadata import ask_outlines
from sparkfleet.runtime.files.builtin_models import PREFIX, builtin_model, builtin_path
from sparkfleet.specs.deployment import Deployment, drafts_of
from sparkfleet.specs.gguf_names import SUFFIX
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.model_name import MAIN, model_name
from sparkfleet.staging.hub_outline import AtHub, at_hub


def checkpoints_of(specs: Iterable[Deployment], facts: Iterable[NodeFacts]) -> dict[str, Checkpoint]:
    """The facts of every checkpoint that planning needs, without contacting nodes.

    None if no node has a GPU, and none for custom workloads. Draft models are included if their weights are known; the
    planner can do without them.

    Raises:
        FactError: a checkpoint cannot be found, or is of an unknown kind.
    """
    specs = tuple(specs)
    needed = _needed(specs, facts)
    drafts = {name: _whole(name) for name in drafts_of(specs)} if needed else {}
    return {model: _target(model, find_checkpoint(model)) for model in needed} | {
        name: found for name, found in drafts.items() if found is not None
    }


async def checkpoints_on(
    specs: Sequence[Deployment],
    facts: Iterable[NodeFacts],
    inventory: Inventory,
    channels: Mapping[str, Channel],
) -> dict[str, Checkpoint]:
    """The same, from the nodes if this machine lacks the weights.

    Raises:
        FactError: a checkpoint cannot be found, or is of an unknown kind.
    """
    needed = _needed(specs, facts)
    drafts = drafts_of(specs) if needed else ()
    wanted = {model: places_of(model, specs, inventory) for model in (*needed, *drafts)}
    found = await search(wanted, inventory, channels)
    known = {name: one for name in drafts if isinstance(one := found[name], Checkpoint) and one.weights_known}
    return known | {model: _target(model, _value(found[model])) for model in needed}


def models_of(specs: Iterable[Deployment]) -> tuple[str, ...]:
    """Names of the deployments' checkpoints, without custom workloads and built-in models, which have none to find."""
    return tuple(
        dict.fromkeys(
            variant.model
            for spec in specs
            for variant in spec.resolved()
            if variant.engine != "custom" and not variant.model.startswith("builtin:")
        )
    )


def places_of(model: str, specs: Iterable[Deployment], inventory: Inventory) -> tuple[str, ...]:
    """Nodes to search for a model: those on which it may run, then the others, from which it would be copied."""
    pinned = (
        node
        for spec in specs
        for variant in spec.resolved()
        if variant.model == model
        for node in variant.nodes or spec.nodes
    )
    return tuple(node for node in dict.fromkeys((*pinned, *inventory.nodes)) if node in inventory.nodes)


def find_checkpoint(model: str) -> Checkpoint:
    """The facts of one checkpoint: from weights on this machine, else from the Hub, else known by name.

    Raises:
        FactError: nothing is known about it, or it is damaged.
    """
    here = _here(model)
    return _value(settled(model, here, (), _at_hub(model, here, ())))


def whole_here(model: str) -> Checkpoint | None:
    """Facts of the weights on this machine; None if there are none, or if they cannot be read."""
    here = _here(model)
    return here if isinstance(here, Checkpoint) and is_whole(here) else None


def _whole(model: str) -> Checkpoint | None:
    """Facts of the weights on this machine or at the Hub; None if there are none, or if they cannot be read."""
    found = whole_here(model) or at_hub(model).checkpoint
    return found if is_whole(found) else None


async def inspect_model(model: str, open_session: Callable[[], Session] | None = None) -> Checkpoint:
    """The facts of a model: a built-in one, one on this machine, on a node of a fleet if one is given, or at the Hub.

    `open_session` opens the session of that fleet; it is called only if this machine does not have the weights.

    Raises:
        FactError: the model cannot be found or read.
    """
    if model.startswith("builtin:"):
        return _builtin(model)
    whole = await asyncio.to_thread(whole_here, model)
    if whole is not None:
        return whole
    if open_session is None:
        return await asyncio.to_thread(find_checkpoint, model)
    session = open_session()
    nodes = tuple(session.inventory.nodes)
    return _value((await search({model: nodes}, session.inventory, session.channels))[model])


def _builtin(model: str) -> Checkpoint:
    name = model.removeprefix("builtin:")
    if not builtin_path(name).is_dir():
        raise FactError(
            f"{model} does not exist yet: it is trained on the node that serves it, on its first start.",
            do=f"`sparkfleet apply` a deployment of it, or run `python -m sparkfleet.tiny_models build {name}`.",
        )
    return read_checkpoint(builtin_path(name), id=model)


async def search(
    wanted: Mapping[str, Sequence[str]], inventory: Inventory, channels: Mapping[str, Channel]
) -> dict[str, Found]:
    """The facts of checkpoints, or the error: from this machine, the nodes in their order, the Hub, or by name.

    Nodes are contacted only for models whose weights this machine lacks: all nodes at once, one request each. The Hub is
    contacted for models that none of them has, unless HF_HUB_OFFLINE is set.

    Args:
        wanted: names of the nodes to search, by model.
        inventory: declares which nodes are this machine.
        channels: to the nodes.
    """
    here = {model: await asyncio.to_thread(_here, model) for model in wanted}
    asked = {model: one for model in wanted if (one := _to_ask(model, here[model])) is not None}
    nodes = dict.fromkeys(node for model in asked for node in wanted[model])
    remote = {node: channels[node] for node in nodes if not inventory.nodes[node].is_local}
    answers = await ask_outlines(remote, tuple(asked.values())) if asked else {}
    by_node = {
        model: tuple(_of_node(node, answers[node], at) for node in wanted[model] if node in answers)
        for at, model in enumerate(asked)
    }
    read = {
        model: await asyncio.to_thread(_read_until_whole, model, here[model], by_node.get(model, ()))
        for model in wanted
    }
    hub = {model: await asyncio.to_thread(_at_hub, model, here[model], read[model]) for model in wanted}
    return {
        model: settled(model, here[model], by_node.get(model, ()), hub[model], read[model])
        for model in wanted
    }


def builtin_models_of(specs: Iterable[Deployment]) -> dict[str, CpuModel]:
    """Capabilities of the built-in models that deployments name, as models or as drafts, built or not.

    Raises:
        SpecError: there is no built-in model of that name.
    """
    variants = [variant for spec in specs for variant in spec.resolved()]
    named = [*(one.model for one in variants), *(one.speculation.draft or "" for one in variants)]
    return {name: builtin_model(name) for name in dict.fromkeys(named) if name.startswith(PREFIX)}


def _needed(specs: Iterable[Deployment], facts: Iterable[NodeFacts]) -> tuple[str, ...]:
    """Checkpoints that planning needs. Nodes without a GPU serve directories only: they download no weights.

    Raises:
        FactError: one of them is a draft, which answers nothing without its target.
    """
    models = models_of(specs)
    for model in models:
        _refuse_draft(model)
    if any(node.gpu is not None for node in facts):
        return models
    return tuple(model for model in models if model.startswith("/"))


def _refuse_draft(model: str) -> None:
    known = speculator_with(model)
    if known is None or known.method == "draft":  # those are models of their own
        return
    targets = " or ".join(known.targets)
    raise FactError(
        f"{model} is a draft for {targets}: it proposes tokens, and has no answers of its own.",
        means=f"{known.method.upper()} reads the hidden states of its target, so no engine serves it alone.",
        do=f"Plan the target; its file may name this one: `speculation: {{method: {known.method}, draft: {model}}}`.",
    )


def _target(model: str, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, if it answers on its own.

    Raises:
        FactError: by its class it only drafts.
    """
    method = draft_method(checkpoint.architectures)
    if method is None:
        return checkpoint
    raise FactError(
        f"{model} is a draft, by its class {', '.join(checkpoint.architectures)}: it proposes tokens, and has no answers"
        " of its own.",
        means="It reads the hidden states of its target, so no engine serves it alone.",
        do="Plan the target; its file may name this one:"
        f" `speculation: {{method: {method or 'METHOD'}, draft: {model}}}`.",
    )


def _of_node(node: str, answer: Sequence[Outline | None] | SparkfleetError, at: int) -> NodeAnswer:
    return node, answer if isinstance(answer, SparkfleetError) else answer[at]


def _value(found: Found) -> Checkpoint:
    if isinstance(found, FactError):
        raise found
    return found


def _here(model: str) -> Found | None:
    """Checkpoint on this machine; None if it has none."""
    name = model_name(model)
    try:
        if model.startswith("/"):
            is_there = os.path.isdir(model) or (model.endswith(SUFFIX) and os.path.exists(model))
            return read_checkpoint(Path(model)) if is_there else None
        cache = hub_cache(os.environ, Path.home())
        check_name(name.base, name.revision or MAIN, name.tag)
        found = cached_snapshot(name.base, name.revision or MAIN, cache, name.tag)
        return None if found is None else read_checkpoint(found, id=name.tagged)
    except FactError as error:
        return error


def _to_ask(model: str, here: Found | None) -> MetadataRequest | None:
    """Metadata to request from nodes; None if this machine has the weights, or the name is invalid."""
    if is_whole(here):
        return None
    try:
        return MetadataRequest.of(model)
    except FactError:
        return None


def _at_hub(model: str, here: Found | None, there: Sequence[Found]) -> AtHub:
    """The Hub's answer if neither this machine nor a node has the weights.

    A damaged checkpoint on this machine has to be mended first.
    """
    if isinstance(here, FactError) or any(map(is_whole, (here, *there))):
        return AtHub()
    return at_hub(model)


def _read_until_whole(model: str, here: Found | None, answers: Sequence[NodeAnswer]) -> tuple[Found, ...]:
    """Metadata of the nodes, up to the first with the weights."""
    there: list[Found] = []
    for node, outline in answers:
        if any(map(is_whole, (here, *there))):
            break
        if isinstance(outline, Outline):
            there.append(_read(model, node, outline))
    return tuple(there)


def _read(model: str, node: str, outline: Outline) -> Found:
    try:
        return read_outline(outline, MetadataRequest.of(model), node)
    except FactError as error:
        return error

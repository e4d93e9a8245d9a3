"""Lists, stages and removes models in the caches of a fleet's nodes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sparkfleet.errors import SpecError
from sparkfleet.fleet.events import OnEvent
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.storage.stage import moving, staging_nodes, staging_settings
from sparkfleet.specs.fields import quote
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.model_name import base_name, model_name
from sparkfleet.staging.agent.remove import Removed, RemoveRequest
from sparkfleet.staging.agent.scan import HeldVersion, NodeScan
from sparkfleet.staging.fleet import StagingNodes
from sparkfleet.staging.orchestrate import stage, survey
from sparkfleet.staging.settings import Need, Staged

if TYPE_CHECKING:  # a slow import, for a controller that answers
    from sparkfleet.controlplane.state.status import FleetStatus

_TAGGED = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?:@[\w./-]+)?:[\w.-]+", re.ASCII)
"""The name of a GGUF model, with its tag."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_HUB_FOLDER = re.compile(r"models--([A-Za-z0-9][\w.-]*)", re.ASCII)
"""Folder of a model in a Hub cache, in a path of a snapshot or of one of its files."""

ModelRow = tuple[HeldVersion, dict[str, HeldVersion]]
"""A version of a model, and the files of it on each node that has any."""


class ModelsHeld(NamedTuple):
    """Models on the nodes of a fleet."""

    rows: tuple[ModelRow, ...]
    free_bytes: dict[str, int]
    """Free on the disk of the cache, by node."""
    kv_bytes: dict[str, int]
    """KV of prompts on the disk, by node; nodes without any are left out."""


class RemovedModel(NamedTuple):
    """A version of a model that was removed."""

    model: str
    commit: str
    freed_bytes: dict[str, int]
    """By node."""
    kept: dict[str, str] = {}  # noqa: RUF012 (of a NamedTuple: never changed)
    """The reason of each node on which it stays."""


async def models_held(session: Session, on_event: OnEvent) -> ModelsHeld:
    """List every model in the caches of the nodes, and the directories that staging has copied to or from them.

    Raises NodeError if a node does not answer.
    """
    settings = await staging_settings(session, on_event)
    seen = await survey(session.channels, moving(session, on_event), settings=settings)
    return ModelsHeld(
        tuple(grouped(seen)),
        {node: found.free_bytes for node, found in seen.items()},
        {node: found.kv_bytes for node, found in seen.items() if found.kv_bytes},
    )


async def stage_model(session: Session, need: Need, on_event: OnEvent) -> Staged:
    """Stage one model on nodes. Raises StagingError if it cannot be obtained, or if there is no room."""
    settings = await staging_settings(session, on_event)
    return (
        await stage(session.inventory, session.channels, [need], moving(session, on_event), settings=settings)
    )[0]


async def unused_models(session: Session, keep: frozenset[str], on_event: OnEvent) -> tuple[ModelRow, ...]:
    """Models of the Hub's caches and interrupted copies of directories that no deployment uses. Removes nothing.

    Args:
        session: the fleet; it has to be up, because the controller knows the deployments.
        keep: names of models to leave out as well.
    """
    used = await _names_in_use(session) | {model_name(name).tagged for name in keep}
    held = await models_held(session, on_event)
    unused = (row for row in held.rows if not is_used(row, used))
    return tuple(
        row if row[0].kind == "hub" else (row[0], left) for row in unused if (left := removable(row))
    )


async def _names_in_use(session: Session) -> frozenset[str]:
    async with await session.controller() as client:
        return used_names(await client.fleet())


def is_used(row: ModelRow, used: frozenset[str]) -> bool:
    """True if a version of a model has one of these names."""
    name = row[0].name
    # A repository's only GGUF model is staged, or named by a deployment, without its tag: then its name alone counts.
    return bool({name, base_name(name)} & used) or name in {base_name(one) for one in used}


def removable(row: ModelRow) -> dict[str, HeldVersion]:
    """Copies by node: of a model of the Hub all; of a directory, which is its owner's, the interrupted ones."""
    return {node: held for node, held in row[1].items() if held.kind == "hub" or held.is_interrupted}


async def remove_models(
    session: Session, rows: Sequence[ModelRow], on_event: OnEvent
) -> tuple[RemovedModel, ...]:
    """Remove versions of models from the nodes that have them.

    What a deployment uses by now stays, and what was staged, or found for a start, since it was listed: somebody has read
    the list, and agreed to it, meanwhile.
    """
    if not rows:
        return ()
    used = await _names_in_use(session)
    staging = await staging_nodes(session, on_event)
    return tuple(
        [
            RemovedModel(row[0].name, row[0].commit, {}, dict.fromkeys(row[1], "a deployment uses it now"))
            if is_used(row, used)
            else await _remove(staging, *row)
            for row in rows
        ]
    )


async def _remove(staging: StagingNodes, held: HeldVersion, nodes: Mapping[str, HeldVersion]) -> RemovedModel:
    freed, kept = {}, {}
    for node, seen in nodes.items():
        request = RemoveRequest(
            name=held.name,
            commit=held.commit,
            cache=staging.settings.cache_on(node),
            kind=held.kind,
            changed_ns=seen.changed_ns if held.kind == "hub" else None,
        )
        removed = await staging.ask(node, "remove", request, Removed)
        if removed.is_kept:
            kept[node] = "it was staged for a start since it was listed"
        else:
            freed[node] = removed.freed_bytes
    return RemovedModel(held.name, held.commit, freed, kept)


def kept_lines(removed: Iterable[RemovedModel]) -> Iterator[str]:
    """A line for each model that stays on nodes, with the reason."""
    for one in removed:
        for reason in dict.fromkeys(one.kept.values()):
            nodes = ", ".join(node for node, other in one.kept.items() if other == reason)
            yield f"{one.model} stays on {nodes}: {reason}."


def chosen_nodes(inventory: Inventory, nodes: str) -> tuple[str, ...]:
    """The named nodes, or all if none is named. Raises SpecError for one that is not in the inventory."""
    known = tuple(inventory.nodes)
    chosen = tuple(dict.fromkeys(name.strip() for name in nodes.split(",") if name.strip())) or known
    for name in chosen:
        if name not in known:
            raise SpecError(f"--nodes: there is no node {quote(name)}. Known: {', '.join(known)}.")
    return chosen


def grouped(seen: Mapping[str, NodeScan]) -> list[ModelRow]:
    """Models of all nodes, by model and commit. The first of each row is the fullest."""
    rows: dict[tuple[str, str, str], dict[str, HeldVersion]] = {}
    for node, found in seen.items():
        for held in found.everything:
            rows.setdefault((held.kind, held.name, held.commit), {})[node] = held
    return [(max(nodes.values(), key=_fullness), nodes) for _, nodes in sorted(rows.items())]


def used_names(status: FleetStatus) -> frozenset[str]:
    """Every name in the files and plans of deployments: models, drafts, variants. Rather one too many than too few."""
    found: set[str] = set()
    for text in used_texts(status):
        if _TAGGED.fullmatch(text):
            found.add(model_name(text).tagged)
            continue
        found.add(base_name(text))
        found.update(_HUB_ID.findall(text))  # engine arguments may be JSON
        # A link to a snapshot is followed if it is on this machine; those of other nodes are not known here.
        for path in {text, os.path.realpath(text)} if text.startswith("/") and "\0" not in text else {text}:
            found.update(folder.replace("--", "/", 1) for folder in _HUB_FOLDER.findall(path))
    return frozenset(found)


def used_texts(status: FleetStatus) -> Iterator[str]:
    """Every text in the files and plans of deployments."""
    for deployment in status.deployments:
        plan = deployment.plan.model_dump(mode="json") if deployment.plan is not None else {}
        yield from _texts([json.loads(deployment.spec or "{}"), plan])


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield str(key)
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


def _fullness(held: HeldVersion) -> tuple[bool, int]:
    return held.complete, held.held_bytes


def whole_bytes(row: ModelRow) -> int:
    """Bytes of the whole model, by the node with the most complete list of its files."""
    return max((held.manifest.size if held.manifest else held.held_bytes) for held in row[1].values())

"""Finds and removes models and images on the nodes that no deployment uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from sparkfleet.fleet.events import OnEvent
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.storage.models import ModelRow, RemovedModel, remove_models, unused_models, used_texts
from sparkfleet.fleet.storage.stage import staging_nodes
from sparkfleet.staging.agent.staged_images import StagedImage, StagedImages

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)


class Surplus(NamedTuple):
    """Models and images that no deployment uses."""

    models: tuple[ModelRow, ...]
    images: Mapping[str, tuple[StagedImage, ...]]
    """By node; nodes without one are left out."""


class Pruned(NamedTuple):
    """Models and images that were removed."""

    models: tuple[RemovedModel, ...]
    images: Mapping[str, StagedImages]
    """By node."""


async def surplus_of(session: Session, keep: frozenset[str], on_event: OnEvent) -> Surplus:
    """Find models of the Hub's caches, and images that staging named, that no deployment uses. Removes nothing.

    A node that does not answer is left out, with a note: the disks of the others can be full meanwhile.

    Args:
        session: the fleet; it has to be up, because the controller knows the deployments.
        keep: names of models to leave out as well.
    """
    used = await _digests_in_use(session)
    models = await unused_models(session, keep, on_event)
    staging = await staging_nodes(session, on_event)
    held = await staging.staged_images(dict.fromkeys(session.channels, ()), needed=())
    unused = {
        node: tuple(image for image in one.images if image.digest not in used) for node, one in held.items()
    }
    return Surplus(models, {node: images for node, images in unused.items() if images})


async def remove_surplus(session: Session, surplus: Surplus, on_event: OnEvent) -> Pruned:
    """Remove what `surplus_of` found, but for what is used by now. An image that a container uses stays, with the reason.

    Raises NodeError if a node does not answer.
    """
    if not (surplus.models or surplus.images):
        return Pruned((), {})
    models = await remove_models(session, surplus.models, on_event)
    used = await _digests_in_use(session)
    found = {
        node: [image.digest for image in images if image.digest not in used]
        for node, images in surplus.images.items()
    }
    digests = {node: some for node, some in found.items() if some}  # without any, all would be listed
    staging = await staging_nodes(session, on_event)
    return Pruned(models, await staging.staged_images(digests, needed=digests))


async def _digests_in_use(session: Session) -> frozenset[str]:
    async with await session.controller() as client:
        return frozenset(
            digest for text in used_texts(await client.fleet()) for digest in _DIGEST.findall(text)
        )

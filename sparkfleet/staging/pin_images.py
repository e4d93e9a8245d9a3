"""Resolves an image's tag to a digest, once for all nodes and before staging, so that all ranks run the same image."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.remote.channel import Channel
from sparkfleet.staging.agent.held_image import ImageHeld
from sparkfleet.staging.agent.images import LOCAL, ImageRequest
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.fleet import StagingNodes
from sparkfleet.staging.progress import OnProgress, silent
from sparkfleet.staging.settings import Need, StagingSettings
from sparkfleet.values import Value


class Pinned(Value):
    """Digest that a tag was resolved to.

    Attributes:
        image: the reference with its digest, `name:tag@sha256:…`.
        node: the node that has the image.
        others: nodes that have a different image under the same tag.
    """

    image: str
    node: str
    others: tuple[str, ...] = ()


async def pin(
    channels: Mapping[str, Channel],
    need: Need,
    progress: OnProgress = silent,
    *,
    settings: StagingSettings | None = None,
) -> Pinned | None:
    """Resolve an image's tag. Images on nodes come first; the registry is queried if no node has one for these processors.

    Args:
        channels: to every node. One that needs nothing and does not answer is left out.
        need: an image by its tag, and the nodes that will run it, rank 0's first: if nodes have different images under the
            tag, the first node's is used. `hub` sets when the registry is queried: never for images built on a node.
        progress: called with the progress.
        settings: Pythons and caches of the nodes.

    Returns:
        None if no node has it and `hub` excludes the registry.

    Raises:
        StagingError: no node can get it.
        NodeError: a node that will run it does not answer. If `hub` excludes the registry, it is left out.
    """
    fleet = StagingNodes(channels, settings or StagingSettings(), progress)
    tag, held = need.wanted.name, await _held(fleet, need)
    mine = next(iter(held.values()), ImageHeld())
    if held and (need.hub != "always" or not mine.digest or tag.startswith(LOCAL)):
        return _first(tag, held)
    if need.hub == "never":
        return None
    try:
        node, pulled = await fleet.pull(tag, need.nodes)
    except StagingError:
        # Docker with containerd's store gives images built here a digest, too: their id.
        if not held or mine.digest != mine.id:
            raise
        return _first(tag, held)
    return _first(tag, {node: pulled})


async def _held(staging: StagingNodes, need: Need) -> dict[str, ImageHeld]:
    """Images on nodes under the tag, those of the nodes that run it first, in their order.

    Images that none of these nodes can run, because they are for other processors, are left out.
    """
    nodes, needed = (*need.nodes, *staging.channels), () if need.hub == "never" else need.nodes
    seen = await staging.images(nodes, ImageRequest(action="look", image=need.wanted.name), needed)
    machines = {seen[node].machine for node in need.nodes if node in seen} or {""}
    return {
        node: held for node, held in seen.items()
        if held.id and any(map(held.runs_on, machines)) and (held.runs_here or node not in need.nodes)
    }  # fmt: skip


def _first(tag: str, held: Mapping[str, ImageHeld]) -> Pinned:
    node, *others = held
    # Compared by digest if there is one: docker's two stores give one image two ids.
    mine = held[node].digest or held[node].id
    different = tuple(name for name in others if (held[name].digest or held[name].id) != mine)
    return Pinned(image=f"{tag}@sha256:{held[node].digest or held[node].id}", node=node, others=different)

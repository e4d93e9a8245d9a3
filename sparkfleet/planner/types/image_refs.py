"""Images of a plan, by tag and by digest. A plan is made with tags; what is started carries digests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sparkfleet.knowledge.engines.images import images_of
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, GroupPlan, Rung


def tags_of(plans: Iterable[DeploymentPlan]) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Images that are named by a tag alone, each with the nodes that are to run it, rank 0's first.

    Returns:
        Those of first rungs, and those of lower rungs only.
    """
    plans = tuple(plans)
    first = _nodes(group.choice.candidate for plan in plans for group in plan.groups)
    lower = _nodes(rung.candidate for plan in plans for group in plan.groups for rung in group.ladder[1:])
    return first, {tag: nodes for tag, nodes in lower.items() if tag not in first}


def tag_words(image: str) -> str:
    """The image; for a tag, with the digest that was published for it, or the note that none was."""
    if "@" in image:
        return image
    known = images_of(image)
    digests = known[-1].digests if known else ()
    pinned = f"published as {digests[0][:19]}…" if digests else "not pinned"
    return f"{image} ({pinned}; apply resolves the tag to a digest)"


def digests_of(plan: DeploymentPlan | None) -> dict[str, str]:
    """References with digests that a plan carries, by name and tag. Nothing if there is no plan."""
    images = [image for candidate in _candidates(plan) if (image := image_of(candidate))] if plan else []
    return {image.partition("@")[0]: image for image in images if "@" in image}


def with_digests(plan: DeploymentPlan, digests: Mapping[str, str]) -> DeploymentPlan:
    """The plan with these references in place of their tags; what has a digest keeps it."""
    return plan.model_copy(update={"groups": tuple(_group(group, digests) for group in plan.groups)})


def _group(group: GroupPlan, digests: Mapping[str, str]) -> GroupPlan:
    return group.model_copy(update={"ladder": tuple(_rung(rung, digests) for rung in group.ladder)})


def _rung(rung: Rung, digests: Mapping[str, str]) -> Rung:
    image = image_of(rung.candidate)
    if image not in digests:
        return rung
    candidate = rung.candidate.model_copy(update={"image": digests[image]})
    return rung.model_copy(update={"candidate": candidate})


def _candidates(plan: DeploymentPlan) -> Iterator[Candidate]:
    return (rung.candidate for group in plan.groups for rung in group.ladder)


def _nodes(candidates: Iterable[Candidate]) -> dict[str, tuple[str, ...]]:
    where: dict[str, dict[str, None]] = {}
    for candidate in candidates:
        if (image := image_of(candidate)) and "@" not in image:
            where.setdefault(image, {}).update(dict.fromkeys(candidate.shape.nodes))
    return {image: tuple(nodes) for image, nodes in where.items()}


def image_of(candidate: Candidate) -> str:
    """Container runtime; "" for a process."""
    return (candidate.image or "") if candidate.runtime == "container" else ""

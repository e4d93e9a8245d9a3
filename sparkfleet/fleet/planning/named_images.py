"""Plans with images that a plan takes only by name, next to the plan without them: builds of a node's own, old forks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.fleet.planning.fewer_bits import FEW, GAIN, Replan, gain_of
from sparkfleet.knowledge.engines.images import Image
from sparkfleet.planner.place.stacks import images_by_name
from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.planner.types.plan import Plan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.values import Value


class NamedImage(Value):
    """An image with which a deployment would be served faster, if it named it."""

    image: str
    tps: float
    """Predicted under the objective: of one request, or of all together."""
    gain: float
    """`tps` as a multiple of the plan's."""
    reason: str
    """Reason why the plan does not take it by itself."""
    built_with: str = ""
    """The command that builds it; "" if it is in a registry."""


def plans_with_named_images(
    specs: Sequence[Deployment], plan: Plan, checkpoints: Mapping[str, Checkpoint], replan: Replan
) -> dict[str, tuple[NamedImage, ...]]:
    """Images by the name of each deployment that would be clearly faster with them; the fastest first.

    Args:
        specs: all deployments of the plan. One with several variants, or with an image, gets none.
        plan: the plan.
        checkpoints: facts, by model.
        replan: as the plan was made.
    """
    if len(specs) > FEW:
        return {}
    refused = {one.name for one in plan.refused}

    def options(spec: Deployment, image: Image) -> Iterator[NamedImage]:
        instead = [one.model_copy(update={"image": image.image}) if one is spec else one for one in specs]
        found = replan(instead, checkpoints)
        before, after = plan.of(spec.name), found.of(spec.name)
        if before is None or after is None or not refused.issuperset(one.name for one in found.refused):
            return  # at nobody else's expense
        gain = gain_of(before, after)
        if gain >= GAIN:
            yield NamedImage(
                image=image.image,
                tps=after.tps or 0.0,
                gain=gain,
                reason=image.by_name,
                built_with=image.built_with,
            )

    found: dict[str, tuple[NamedImage, ...]] = {}
    for spec in specs:
        own = plan.of(spec.name)
        if own is None or spec.image or not spec.model:
            continue
        images = images_by_name(spec.model, own.groups[0].choice.candidate.quant)
        served = [one for image in images for one in options(spec, image)]
        if served:
            found[spec.name] = tuple(sorted(served, key=lambda one: -one.tps))
    return found


def named_image_lines(options: Sequence[NamedImage]) -> list[str]:
    """Lines of a plan: each image with its predicted speed, the reason why it was not taken, and its build."""
    return lines_of("by name", *(_line(one) for one in options))


def _line(option: NamedImage) -> str:
    built = f"; build it with {option.built_with}" if option.built_with else ""
    return f"`image: {option.image}`: {option.tps:.3g} tok/s, {option.gain:.1f}×; {option.reason}{built}"

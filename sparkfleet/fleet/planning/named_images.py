"""Plans with images that a plan takes only by name, next to the plan without them: builds of a node's own, old forks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkfleet.fleet.planning.replanning import GAIN, Replanning, gain_of
from sparkfleet.planner.place.stacks import images_by_name
from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import three_digits
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


def plans_with_named_images(made: Replanning) -> dict[str, tuple[NamedImage, ...]]:
    """Images by the name of each deployment that would be clearly faster with them; the fastest first. One with several
    variants, or with an image, gets none.
    """
    found = {
        spec.name: tuple(_options(made, spec)) for spec in made.candidates if spec.model and not spec.image
    }
    return {
        name: tuple(sorted(options, key=lambda one: -one.tps)) for name, options in found.items() if options
    }


def _options(made: Replanning, spec: Deployment) -> Iterator[NamedImage]:
    before = made.plan.of(spec.name)
    if before is None or spec.model is None:
        return
    for image in images_by_name(spec.model, before.groups[0].choice.candidate.quant):
        found = made.with_image(spec, image.image)
        after = found.of(spec.name) if found else None
        if after is not None and (gain := gain_of(before, after)) >= GAIN:
            yield NamedImage(
                image=image.image,
                tps=after.tps or 0.0,
                gain=gain,
                reason=image.by_name,
                built_with=image.built_with,
            )


def named_image_lines(options: Sequence[NamedImage]) -> list[str]:
    """Lines of a plan: each image with its predicted speed, the reason why it was not taken, and its build."""
    return lines_of("by name", *(_line(one) for one in options))


def _line(option: NamedImage) -> str:
    built = f"; build it with {option.built_with}" if option.built_with else ""
    return f"`image: {option.image}`: {three_digits(option.tps)} tok/s, {option.gain:.1f}×; {option.reason}{built}"

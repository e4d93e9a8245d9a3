"""Plans with images that a plan takes only by name, next to the plan without them: builds of a node's own, old forks, and
releases that nobody has run on a Spark, if they mend what the choice is known for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkfleet.fleet.planning.replanning import GAIN, Replanning, gain_of
from sparkfleet.knowledge.engines.images import Image
from sparkfleet.planner.place.stacks import images_by_name, unproven_images
from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.planner.types.plan import DeploymentPlan, Rung
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import three_digits
from sparkfleet.values import Value


class NamedImage(Value):
    """An image with which a deployment would be served better, if it named it."""

    image: str
    tps: float
    """Predicted under the objective: of one request, or of all together."""
    gain: float
    """`tps` as a multiple of the plan's."""
    reason: str
    """Reason why the plan does not take it by itself."""
    mends: tuple[str, ...] = ()
    """Faults of the plan's choice that it does not have, in words."""
    built_with: str = ""
    """The command that builds it; "" if it is in a registry."""


def plans_with_named_images(made: Replanning) -> dict[str, tuple[NamedImage, ...]]:
    """Images by the name of each deployment that would be clearly faster with them, the fastest first; then a release that
    mends a fault of its choice. One with several variants, or with an image, gets none.
    """
    found = {
        spec.name: (*sorted(_options(made, spec), key=lambda one: -one.tps), *_mending(made, spec))
        for spec in made.candidates
        if spec.model and not spec.image
    }
    return {name: options for name, options in found.items() if options}


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


def _mending(made: Replanning, spec: Deployment) -> tuple[NamedImage, ...]:
    """The release that is worth most, of those that nobody has run and that mend what costs the choice rank."""
    before = made.plan.of(spec.name)
    if before is None or not _is_faulty(before.groups[0].choice):
        return ()
    candidate = before.groups[0].choice.candidate
    found = [
        (after.groups[0].choice.worth, option)
        for image in unproven_images(candidate.model, candidate.quant, candidate.engine)
        if (plan := made.with_image(spec, image.image)) and (after := plan.of(spec.name))
        for option in _mended_by(image, before, after)
    ]
    return (max(found, key=lambda item: item[0])[1],) if found else ()


def _is_faulty(choice: Rung) -> bool:
    """True if it is known to compute wrong results, or its prefix cache misses earlier turns."""
    return bool(choice.uncured) or choice.repeated_prefill is not None


def _mended_by(image: Image, before: DeploymentPlan, after: DeploymentPlan) -> Iterator[NamedImage]:
    first, gain = before.groups[0].choice, gain_of(before, after)
    mends = _mended(first, after.groups[0].choice)
    loses_all = first.repeated_prefill is not None and first.repeated_prefill.whole
    # A part of the earlier turns alone is worth a line only if the release is clearly faster with it.
    if mends and (gain >= GAIN or first.uncured or loses_all):
        yield NamedImage(
            image=image.image,
            tps=after.tps or 0.0,
            gain=gain,
            reason=f"unproven: {image.note or 'nobody has published a run on a Spark'}".rstrip("."),
            mends=mends,
        )


def _mended(before: Rung, after: Rung) -> tuple[str, ...]:
    """Faults that a choice is known for, and another one is not."""
    if set(after.uncured) - set(before.uncured):
        return ()
    words = [f"without {rule}" for rule in before.uncured if rule not in after.uncured]
    lost = before.repeated_prefill
    if lost is not None and after.repeated_prefill is None:
        same = after.candidate.speculation == before.candidate.speculation
        words.append("the prefix cache works" + ("" if same else f" with {after.candidate.speculation}"))
    return tuple(words)


def named_image_lines(options: Sequence[NamedImage]) -> list[str]:
    """Lines of a plan: each image with its predicted speed, the reason why it was not taken, and its build."""
    return lines_of("by name", *(_line(one) for one in options))


def _line(option: NamedImage) -> str:
    built = f"; build it with {option.built_with}" if option.built_with else ""
    mends = "".join(f"; {one}" for one in option.mends)
    return f"`image: {option.image}`: {three_digits(option.tps)} tok/s, {option.gain:.1f}×{mends}; {option.reason}{built}"

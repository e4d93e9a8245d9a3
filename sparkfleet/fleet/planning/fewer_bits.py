"""Plans with published checkpoints of the same model in fewer bits, next to the plan with the weights that were named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.fleet.planning.replanning import GAIN, Replanning, gain_of
from sparkfleet.knowledge.models.fewer_bits import checkpoints_with_fewer_bits
from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.planner.types.plan import DeploymentPlan, Plan, Rung
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import gb, three_digits
from sparkfleet.values import Value


class FewerBits(Value):
    """A published checkpoint that could be served in place of a deployment's own."""

    model: str
    bytes_on_disk: int
    rung: Rung | None
    """The choice with it; None if it does not fit either."""
    tps: float = 0.0
    """Predicted under the objective: of one request, or of all together; 0: not predicted."""
    gain: float | None = None
    """`tps` as a multiple of the plan's; None if the plan serves nothing: then it is enough that these weights fit."""
    roomier: str = ""
    """Its context and requests at once, and the plan's, if the plan had to lower its own below them."""
    nearest: tuple[str, ...] = ()
    """The nearest things that would fit, in words, if it does not fit."""

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Higher is better among checkpoints of one format: one that is served, without known wrong results, worth most."""
        rung = self.rung
        return (False, False, 0.0) if rung is None else (True, not rung.uncured, rung.worth)


def plans_with_fewer_bits(made: Replanning) -> dict[str, tuple[FewerBits, ...]]:
    """Other weights by the name of each deployment that the fleet cannot serve, or would serve faster or with more context
    or requests at once; the fastest first. A deployment with several variants gets none.
    """

    def options(spec: Deployment, alike: Sequence[Checkpoint]) -> Iterator[FewerBits]:
        for other in alike:
            found = made.with_model(spec, other)
            if found is not None:
                yield from _option(other, made.plan, found, spec.name)

    def best(spec: Deployment, own: Checkpoint) -> Iterator[FewerBits]:
        for alike in checkpoints_with_fewer_bits(own):
            if found := max(options(spec, alike), key=lambda one: one.rank, default=None):
                yield found

    found = {
        spec.name: _best(best(spec, own))
        for spec in made.candidates
        if (own := made.checkpoints.get(spec.model or "")) is not None
    }
    return {name: options for name, options in found.items() if options}


def _best(options: Iterable[FewerBits]) -> tuple[FewerBits, ...]:
    """The options that can be served, the fastest first; without any, the others, the smallest first."""
    found = list(options)
    served = sorted((one for one in found if one.rung), key=lambda one: -one.tps)
    return tuple(served or sorted(found, key=lambda one: one.bytes_on_disk))


def _option(other: Checkpoint, plan: Plan, instead: Plan, name: str) -> Iterator[FewerBits]:
    """The other weights, if they are clearly faster under the objective than the plan's, no slower with larger sizes, or
    if the plan serves none."""
    before, after = plan.of(name), instead.of(name)
    nearest = next((one.nearest for one in instead.refused if one.name == name), ())
    rung = after.groups[0].choice if after else None
    gain = gain_of(before, after) if after and before else None
    roomier = _roomier(before, after) if after and before else ""
    if nearest or (rung and (gain is None or gain >= (1.0 if roomier else GAIN))):
        yield FewerBits(
            model=other.id,
            bytes_on_disk=other.bytes_on_disk,
            rung=rung,
            tps=(after.tps or 0.0) if after else 0.0,
            gain=gain,
            roomier=roomier,
            nearest=nearest,
        )


def _roomier(before: DeploymentPlan, after: DeploymentPlan) -> str:
    """Sizes with the other weights against the plan's, in words; "" if they are no larger."""
    own, other = (one.groups[0].choice.candidate for one in (before, after))
    larger = (other.context, other.concurrency) != (own.context, own.concurrency)
    if not larger or other.context < own.context or other.concurrency < own.concurrency:
        return ""
    return f"{other.context} × {other.concurrency} instead of {own.context} × {own.concurrency}"


def fewer_bits_lines(options: Sequence[FewerBits]) -> list[str]:
    """Lines of a plan: each of the other weights with its size and speed, and the line of a deployment that chooses it."""
    texts = [f"`model: {one.model}` ({gb(one.bytes_on_disk)}): {_outcome(one)}" for one in options]
    return lines_of("fewer bits", *texts)


def _outcome(option: FewerBits) -> str:
    if option.rung is None:
        return " · ".join(option.nearest)
    place = "" if option.gain else f"fits on {' + '.join(option.rung.candidate.shape.nodes)}"
    speed = f"{three_digits(option.tps)} tok/s" if option.tps else ""
    gain = f"{option.gain:.1f}×" if option.gain else ""
    sizes = f"context {option.roomier}" if option.roomier else ""
    wrong = (
        f"; known to answer wrongly (`sparkfleet explain {option.rung.uncured[0]}`)"
        if option.rung.uncured
        else ""
    )
    # Its answers differ from those of the weights that were named: no number here is about that.
    return ", ".join(part for part in (place, speed, gain, sizes) if part) + "; quality not measured" + wrong

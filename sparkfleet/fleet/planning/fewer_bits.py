"""Plans with published checkpoints of the same model in fewer bits, next to the plan with the weights that were named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.fleet.planning.gguf_offers import GgufOffer
from sparkfleet.fleet.planning.published_names import is_published
from sparkfleet.fleet.planning.replanning import GAIN, Replanning, gain_of, order_of
from sparkfleet.knowledge.engines.launch_recipes import recommended_models
from sparkfleet.knowledge.models.fewer_bits import checkpoints_with_fewer_bits
from sparkfleet.knowledge.published.figures import ComparedFigure
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
    format: str = ""
    """Of its weights."""
    recommended: tuple[int, ...] = ()
    """Numbers of Sparks for which NVIDIA's recipes serve it."""

    assumed: bool = False
    """True if its parts' bits are not known: its format is that of its name."""

    @property
    def published(self) -> ComparedFigure | None:
        """The published rate of one request; None if there is none, or `tps` is of several together."""
        alone = self.rung.prediction.decode_tps_per_request if self.rung else None
        return self.rung.published.figure if self.rung and alone and alone.mid == self.tps else None


def plans_with_fewer_bits(made: Replanning) -> dict[str, tuple[FewerBits, ...]]:
    """Other weights by the name of each deployment that the fleet cannot serve, or would serve faster or with more context
    or requests at once: of each format the best, by prediction and by what is published, and those that NVIDIA's recipes
    serve; the best first. A deployment with several variants gets none.
    """

    def options(spec: Deployment, own: Checkpoint) -> Iterator[FewerBits]:
        for other in checkpoints_with_fewer_bits(own):
            found = made.with_model(spec, other)
            if found is not None:
                yield from _option(other, made.plan, found, spec.name)

    found = {
        spec.name: _best(options(spec, own))
        for spec in made.candidates
        if (own := made.checkpoints.get(spec.model or "")) is not None
    }
    return {name: options for name, options in found.items() if options}


def best_variant(ggufs: Sequence[GgufOffer], fewer_bits: Sequence[FewerBits]) -> GgufOffer | FewerBits | None:
    """The best of what can be served in place of a deployment's own checkpoint; None without any."""
    variants: list[GgufOffer | FewerBits] = [*ggufs, *fewer_bits]
    return min((one for one in variants if one.rung is not None), key=_order, default=None)


def _order(one: GgufOffer | FewerBits) -> tuple[bool, bool, bool, float]:
    """Key of what is served, the best first: one that is known to answer wrongly comes behind all others, and one whose bits
    are only assumed behind those that are known."""
    if one.rung is None:
        return True, True, True, 0.0
    return bool(one.rung.uncured), isinstance(one, FewerBits) and one.assumed, *order_of(one.rung)


def _best(options: Iterable[FewerBits]) -> tuple[FewerBits, ...]:
    """The options that can be served, the best first; without any, the others, the smallest first. Of each format the first,
    and those that are recommended."""
    found = list(options)
    served = sorted((one for one in found if one.rung), key=_order)
    ordered = served or sorted(found, key=lambda one: one.bytes_on_disk)
    first = {one.format: one for one in reversed(ordered)}
    return tuple(one for one in ordered if one.recommended or first[one.format] is one)


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
            format=other.quantization.scheme.format if other.quantization else "",
            assumed=not is_published(other.id),
            recommended=recommended_models().get(other.id, ()),
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
    texts = [
        f"`model: {one.model}` ({gb(one.bytes_on_disk)}{', assumed from its name' * one.assumed}): {_outcome(one)}"
        for one in options
    ]
    return lines_of("fewer bits", *texts)


def _outcome(option: FewerBits) -> str:
    if option.rung is None:
        return " · ".join(option.nearest)
    place = "" if option.gain else f"fits on {' + '.join(option.rung.candidate.shape.nodes)}"
    published = f" ({option.published.words})" if option.published else ""
    speed = f"{three_digits(option.tps)} tok/s{published}" if option.tps else ""
    gain = f"{option.gain:.1f}×" if option.gain else ""
    sizes = f"context {option.roomier}" if option.roomier else ""
    # Its answers differ from those of the weights that were named: no number here is about that.
    recipe = "; in NVIDIA's recipes" if option.rung.candidate.shape.ranks in option.recommended else ""
    uncured = option.rung.uncured
    wrong = f"; known to answer wrongly (`sparkfleet explain {uncured[0]}`)" if uncured else ""
    return (
        ", ".join(part for part in (place, speed, gain, sizes) if part)
        + f"{recipe}; quality not measured{wrong}"
    )


def speed_words(option: FewerBits) -> str:
    """`41.9 tok/s for one user predicted (published: 43.9)`."""
    if option.rung is None or not option.tps:
        return "speed not predicted"
    requests = option.rung.prediction.concurrency or 1
    alone = option.rung.prediction.decode_tps_per_request
    load = "for one user" if alone and alone.mid == option.tps else f"shared by {requests}"
    published = f" ({option.published.words})" if option.published else ""
    return f"{three_digits(option.tps)} tok/s {load} predicted{published}"

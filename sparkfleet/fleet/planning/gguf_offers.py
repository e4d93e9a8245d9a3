"""Plans with a published GGUF of the same model on llama.cpp, next to the plan with the weights that were named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.fleet.planning.replanning import GAIN, Replanning, order_of
from sparkfleet.knowledge.models.known_models import ggufs_of
from sparkfleet.knowledge.models.published_ggufs import published_gguf
from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.planner.search.spread import sparks_words
from sparkfleet.planner.types.plan import DeploymentPlan, Rung
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import gb, three_digits
from sparkfleet.values import Value

CLEARLY = 1.05
"""Times from which on a plan that serves more tokens to all requests together is worth a word."""
MOST_TRIED = 4
"""GGUFs of one model that are planned, in the order of `ggufs.yaml`: each is a plan of its own."""


class GgufOffer(Value):
    """A published GGUF that could be served in place of a deployment's own checkpoint."""

    model: str
    bytes_on_disk: int
    same_bits: bool
    """True if it has the weights that the model's maker publishes."""
    rung: Rung
    """The choice with it."""
    tps: float
    """Under the objective: of one request, or of all together."""
    published: bool
    """True if `tps` was published of this combination, False if it is predicted."""
    gain: float | None = None
    """`tps` as a multiple of the plan's; None if the plan serves nothing."""
    fewer_together: tuple[float, float] | None = None
    """Predicted tok/s of all requests together with it and with the plan, if they are clearly fewer with it."""
    nodes: int = 1
    """Nodes that it takes."""
    nodes_saved: int = 0
    """Nodes that the plan takes and it does not."""


def plans_with_ggufs(made: Replanning) -> dict[str, tuple[GgufOffer, ...]]:
    """GGUFs by the name of each deployment that would be clearly faster with them, or that the fleet cannot serve without:
    the best one, by prediction and by what is published, and the best with the maker's own bits. If these free a node, it is
    enough that they are as fast, unless the deployment sets `concurrency` and they yield less for so many. A deployment with
    several variants, an engine or an image gets none.
    """

    def options(spec: Deployment, own: Checkpoint) -> Iterator[GgufOffer]:
        for other in ggufs_of(own)[:MOST_TRIED]:
            found = made.with_model(spec, other)
            after = found.of(spec.name) if found else None
            if after is not None:
                yield from _offer(other, spec, made.plan.of(spec.name), after)

    found = {
        spec.name: _best(options(spec, own))
        for spec in made.candidates
        if spec.engine == "auto" and spec.image is None
        if (own := made.checkpoints.get(spec.model or "")) is not None
    }
    return {name: offers for name, offers in found.items() if offers}


def _offer(
    other: Checkpoint, spec: Deployment, before: DeploymentPlan | None, after: DeploymentPlan
) -> Iterator[GgufOffer]:
    own, there = (None if before is None else _rate(before)), _rate(after)
    if there is None:
        return
    entry = published_gguf(other.id)
    offer = GgufOffer(
        model=other.id,
        bytes_on_disk=other.bytes_on_disk,
        same_bits=entry is not None and entry.same_bits,
        rung=after.groups[0].choice,
        tps=there[0],
        published=there[1],
        gain=there[0] / own[0] if own else None,
        fewer_together=_fewer_together(before, after),
        nodes=_nodes(after),
        nodes_saved=max(0, _nodes(before) - _nodes(after)) if before is not None else 0,
    )
    if before is None or (offer.gain is not None and offer.gain >= _least_gain(offer, spec)):
        yield offer


def _least_gain(offer: GgufOffer, spec: Deployment) -> float:
    """The gain from which on a GGUF is shown."""
    is_slower_together = (spec.concurrency or 1) > 1 and offer.fewer_together is not None
    return 1.0 if offer.same_bits and offer.nodes_saved and not is_slower_together else GAIN


def _nodes(plan: DeploymentPlan) -> int:
    return len({node for group in plan.groups for node in group.choice.candidate.shape.nodes})


def _fewer_together(before: DeploymentPlan | None, after: DeploymentPlan) -> tuple[float, float] | None:
    if before is None or len(before.groups) != len(after.groups):
        return None
    there, own = (one.groups[0].choice.prediction.decode_tps_aggregate for one in (after, before))
    fewer = there is not None and own is not None and there.mid * CLEARLY < own.mid
    return (there.mid, own.mid) if fewer and there and own else None


def _rate(plan: DeploymentPlan) -> tuple[float, bool] | None:
    """tok/s under the objective, and whether they were published of the combination: one group alone, with such a load."""
    published = plan.groups[0].choice.published.exactly
    if plan.objective != "throughput" and len(plan.groups) == 1 and published is not None:
        return published, True
    return None if plan.tps is None else (plan.tps, False)


def _best(offers: Iterator[GgufOffer]) -> tuple[GgufOffer, ...]:
    found = sorted(offers, key=lambda one: order_of(one.rung))
    same = [one for one in found if one.same_bits]
    return tuple(dict.fromkeys((*found[:1], *same[:1])))


def gguf_lines(offers: Sequence[GgufOffer]) -> list[str]:
    """Lines of a plan: each GGUF with its size and speed, and the line of a deployment that chooses it."""
    return lines_of("llama.cpp", *(_line(one) for one in offers))


def speed_of(offer: GgufOffer) -> str:
    """`55.7 tok/s for one user`, or `180 tok/s shared by 16`."""
    requests = offer.rung.prediction.concurrency or 1
    throughput = offer.tps != _alone(offer) and not offer.published
    load = f"shared by {requests}" if throughput and requests > 1 else "for one user"
    return f"{three_digits(offer.tps)} tok/s {load}"


def _line(offer: GgufOffer) -> str:
    place = "" if offer.gain else f"fits on {' + '.join(offer.rung.candidate.shape.nodes)}"
    gain = f"{offer.gain:.1f}×" if offer.gain else ""
    parts = ", ".join(part for part in (place, speed_of(offer), gain) if part)
    basis = basis_of(offer)
    saved = (
        f"; on {sparks_words(offer.nodes)} instead of {offer.nodes + offer.nodes_saved}"
        if offer.nodes_saved
        else ""
    )
    quality = "the maker's own bits" if offer.same_bits else "quality not measured"
    together = ""
    if offer.fewer_together is not None:
        with_it, without = offer.fewer_together
        requests = offer.rung.prediction.concurrency
        together = f"; shared by {requests}: {with_it:.0f} tok/s instead of {without:.0f}, predicted"
    return f"`model: {offer.model}` ({gb(offer.bytes_on_disk)}): {parts}; {basis}; {quality}{saved}{together}"


def basis_of(offer: GgufOffer) -> str:
    """`published, 54.1 predicted`, `predicted, published: 9.2 of unsloth/…`, or `predicted`."""
    alone, figure = _alone(offer), offer.rung.published.figure
    if offer.published:
        return f"published, {three_digits(alone)} predicted" if alone is not None else "published"
    return f"predicted, {figure.words}" if figure is not None and offer.tps == alone else "predicted"


def _alone(offer: GgufOffer) -> float | None:
    band = offer.rung.prediction.decode_tps_per_request
    return None if band is None else band.mid

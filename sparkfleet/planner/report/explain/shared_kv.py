"""Lines about a KV cache that ranks share (decode context parallelism), or could share."""

from __future__ import annotations

from sparkfleet.knowledge.published.shared_kv import nearest_run
from sparkfleet.perf.prediction import SharedKv
from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.planner.types.plan import Candidate, Rung
from sparkfleet.units import three_digits

LABEL = "kv shared"


def shared_kv_lines(rung: Rung) -> list[str]:
    """The ranks that share one KV cache with what that was published to cost, or what would fit if they did."""
    shape, could = rung.candidate.shape, rung.prediction.shared_kv
    if shape.dcp > 1:
        of = "" if shape.dcp == shape.tp else f" of the {shape.tp}"
        return lines_of(
            LABEL,
            f"{shape.dcp}{of} ranks keep one KV cache, split by tokens: room for {shape.dcp}× the tokens",
            f"published: {nearest_run(shape.dcp)}",
        )
    return [] if could is None else _offer(rung, could)


def _offer(rung: Rung, could: SharedKv) -> list[str]:
    has, alone = rung.candidate, rung.prediction
    sizes = f"context {could.largest_context} × {has.concurrency}"
    if could.largest_concurrency > (alone.largest_concurrency or has.concurrency):
        sizes += f", or {has.context} × {could.largest_concurrency} requests"
    room = f"{sizes} would fit if {could.dcp} ranks shared one KV cache ({_field(has, could.dcp)})"
    if could.refused_by:
        return lines_of(
            LABEL, f"{room}; {has.stack} does not run that (`sparkfleet explain {could.refused_by}`)"
        )
    undrafted = " without speculation" if could.undrafted else ""
    speed = f"predicted{undrafted}: {three_digits(could.decode_tps)} tok/s for one user"
    return lines_of(LABEL, f"{room}; {speed}", f"published: {nearest_run(could.dcp)}; only if it is set")


def _field(candidate: Candidate, dcp: int) -> str:
    """The line of a deployment that sets it: `parallel: {tp: 4, dcp: 4}`."""
    shape = candidate.shape
    degrees = {"tp": shape.tp, "pp": shape.pp, "ep": shape.ep}
    given = [f"{name}: {degree}" for name, degree in degrees.items() if degree > 1]
    return f"`parallel: {{{', '.join((*given, f'dcp: {dcp}'))}}}`"

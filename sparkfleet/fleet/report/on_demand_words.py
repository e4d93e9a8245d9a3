"""Words about deployments on demand: what starts and ends each, who waits for one, and for how long. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sparkfleet.controlplane.state.status import DeploymentStatus, OnDemandStatus
from sparkfleet.group.report import GroupPhase
from sparkfleet.units import duration_words, plural


def on_demand_words(deployment: DeploymentStatus) -> str:
    """Beginning and end of what is on demand."""
    idle = json.loads(deployment.spec).get("idle")
    ends = f"after {duration_words(idle)} without a request, or " if idle is not None else ""
    return (
        f"a request or `sparkfleet load {deployment.name}` starts it;"
        f" it ends {ends}when another one needs its memory"
    )


def use_words(deployment: DeploymentStatus) -> str:
    """The present use of what is on demand; "" if it runs always, or nothing is known."""
    return "; ".join(_parts(deployment, deployment.demand)) if deployment.demand is not None else ""


def use_and_command(deployment: DeploymentStatus) -> str:
    """The same with the command that changes it."""
    has_failed = deployment.state == "failed" and not _serves(deployment)
    if not deployment.on_demand or has_failed or deployment.state == "stopping":
        return use_words(deployment)
    verb, does = ("load", "starts it now") if deployment.state == "unloaded" else ("unload", "ends it now")
    return " · ".join(filter(None, (use_words(deployment), f"`sparkfleet {verb} {deployment.name}` {does}")))


def _parts(deployment: DeploymentStatus, use: OnDemandStatus) -> Iterator[str]:
    if deployment.state in ("ready", "updating") or (deployment.state == "failed" and _serves(deployment)):
        if use.in_flight:
            yield f"{plural(use.in_flight, 'request')} in flight"
        elif use.unused_s is not None:
            yield f"no request for {duration_words(use.unused_s)}"
        yield _end(use)
    elif deployment.state in ("unloaded", "starting"):
        if use.waits_s is not None:
            yield f"{use.loaded_by or 'a request'} has waited {duration_words(use.waits_s)}"
        if use.start_s is not None and deployment.state == "unloaded":
            yield f"its last start took {duration_words(use.start_s)}"
    elif deployment.state == "failed":
        yield "its requests get a 503 until `sparkfleet apply FILE --retry`"


def _serves(deployment: DeploymentStatus) -> bool:
    """True if a group is ready, maybe of the generation before one that did not start."""
    return any(one.phase is GroupPhase.READY for one in deployment.groups)


def _end(use: OnDemandStatus) -> str:
    """`ends in 8 min 40 s or for another model`."""
    if use.ends_in_s is not None:
        return f"ends in {duration_words(use.ends_in_s)} or for another model"
    last = {0: "its last request", 1: "it"}.get(use.in_flight, "them")
    after = "" if use.idle_s is None else f"{duration_words(use.idle_s)} after {last} or "
    return f"ends {after}for another model"

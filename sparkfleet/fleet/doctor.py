"""Examines nodes and links: faults, their meaning and their remedy. Changes nothing on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import sparkfleet
from sparkfleet.doctor.collect import gather, with_context
from sparkfleet.doctor.measure import measure_paths
from sparkfleet.doctor.registry import examine
from sparkfleet.doctor.report import DoctorReport
from sparkfleet.doctor.snapshot import FleetReadings, Needed, PathSnapshot
from sparkfleet.errors import FactError, SparkfleetError
from sparkfleet.fabric.link_measurements import save_measurements
from sparkfleet.fleet.events import TroubleFound
from sparkfleet.fleet.planning.checkpoints import models_of, places_of, search
from sparkfleet.fleet.planning.settled_checkpoint import Found
from sparkfleet.fleet.session import Session
from sparkfleet.knowledge.rules.rules import doctor_rules
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.model_name import model_name


class Examined(NamedTuple):
    """A fleet that was examined."""

    report: DoctorReport
    unsized: tuple[FactError, ...]
    """Errors of deployments whose weights were left out, because their size is unknown."""


async def examine_fleet(
    session: Session,
    nodes: Sequence[str] = (),
    deployments: Sequence[Deployment] = (),
    *,
    measure: bool = True,
) -> Examined:
    """Examine nodes and the links between them.

    Args:
        nodes: only these, and the links between them; empty: all.
        deployments: whose weights must fit, but for those in directories; empty: those of the fleet.
        measure: send bytes over the links. The measurements are kept for the planner.

    Raises:
        SpecError: a node is not in the inventory.
    """
    session.inventory.require_nodes(nodes)
    fleet, weights, _ = await asyncio.gather(
        gather(session.inventory, session.channels, nodes=nodes),
        _weights(session, nodes, deployments),
        asyncio.to_thread(doctor_rules),  # read while the nodes answer
    )
    paths = await _measure(session, fleet) if measure else None
    needed = [one for one in weights if isinstance(one, Needed)]
    view = with_context(fleet, sparkfleet=sparkfleet.__version__, needed=needed, paths=paths)
    return Examined(
        DoctorReport.of(view.name, examine(view)), tuple(one for one in weights if isinstance(one, FactError))
    )


async def _weights(
    session: Session, nodes: Sequence[str], deployments: Sequence[Deployment]
) -> list[Needed | FactError]:
    """The weights that must fit, from this machine, else from the examined nodes, else known by name."""
    specs = tuple(deployments) or await _served(session)
    wanted = {
        model: [node for node in places_of(model, specs, session.inventory) if not nodes or node in nodes]
        for model in models_of(specs)
    }
    found = await search(wanted, session.inventory, session.channels)
    return [one for spec in specs for one in weights_of(spec, found)]


async def _served(session: Session) -> tuple[Deployment, ...]:
    """The deployments of the fleet, if its controller answers."""
    try:
        client = await session.find_controller()
        if client is None:
            return ()
        async with client:
            status = await client.fleet()
    except SparkfleetError:  # other checks find the reason why it does not answer
        return ()
    return tuple(Deployment.model_validate_json(one.spec) for one in status.deployments if one.spec)


async def _measure(session: Session, fleet: FleetReadings) -> tuple[PathSnapshot, ...]:
    """Measure the links, and save the results for the planner in the file of `sparkfleet fabric measure`.

    If they cannot be saved (a full disk is a finding, too), that is a trouble of the session.
    """
    measured = await measure_paths(session.inventory, fleet, session.channels)
    if measured.kept:
        try:
            save_measurements(FleetPaths.default(session.inventory.fleet).links, measured.kept)
        except (OSError, SparkfleetError) as error:
            reason = (
                error.what if isinstance(error, SparkfleetError) else f"{error.filename}: {error.strerror}."
            )
            session.report(TroubleFound(line=f"warning: the measurements were not kept for `plan`. {reason}"))
    return measured.paths


def weights_of(spec: Deployment, found: Mapping[str, Found]) -> Iterator[Needed | FactError]:
    """Weights of each variant of a deployment; the error if they are not known. `found`: checkpoints, by model."""
    for variant in spec.resolved():
        if variant.model not in models_of([spec]):
            continue
        checkpoint = found[variant.model]
        if isinstance(checkpoint, FactError):
            yield checkpoint
            continue
        if variant.model.startswith("/"):  # which nodes have the directory is not read
            continue
        model, revision, _ = model_name(variant.model)
        yield Needed(
            deployment=spec.name,
            model=model,
            revision=revision,
            tag=checkpoint.gguf.tag if checkpoint.gguf else "",
            weights_bytes=checkpoint.bytes_on_disk,
            nodes=tuple(variant.nodes or spec.nodes),
        )

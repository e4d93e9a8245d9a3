"""Rows of the store and the values in them."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.event import Event
from sparkfleet.gateway.routing_table import FormerKey, KeyEntry, KeyLimits
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.values import Value


class KeySettings(Value):
    """The stored part of a key beside its name and its digest."""

    limits: KeyLimits = KeyLimits()
    former: FormerKey | None = None
    earlier: tuple[FormerKey, ...] = ()


class StoreIdentity(Value):
    """Identity of a store, kept in it and beside it: a file in its place that has another one is another store."""

    id: str
    """Random, hexadecimal; drawn when the file was made."""
    fleet: str
    """Name of its fleet; "" if none has used it yet."""
    changes: int
    """Changes of the desired state and of the keys since the file was made."""


def desired_of(row: tuple[Any, ...]) -> Desired:
    """Reads a generation of a deployment."""
    spec, plan, generation, who, since, members = row
    return Desired(
        spec=Deployment.model_validate_json(spec),
        plan=DeploymentPlan.model_validate_json(plan),
        generation=generation,
        who=who,
        since=since,
        members=tuple((first, index) for first, index in json.loads(members)),
    )


def unknown_parts(error: ValidationError) -> str:
    """The fields of a stored document that this release does not know, or whose values it does not know, in words."""
    found = (".".join(str(part) for part in one["loc"] if isinstance(part, str)) for one in error.errors())
    return ", ".join(sorted(set(found)))


def desired_row(desired: Desired) -> tuple[Any, ...]:
    """A generation as it is stored, with its name at the end."""
    members = json.dumps(desired.members)
    return (
        *documents(desired.spec, desired.plan),
        desired.generation,
        desired.who,
        desired.since,
        members,
        desired.name,
    )


def documents(spec: Deployment, plan: DeploymentPlan) -> tuple[str, str]:
    """A request and its plan, as they are stored."""
    return spec.for_disk(), plan.for_disk()


def event_of(row: tuple[Any, ...]) -> Event:
    """Reads an event."""
    return Event(**dict(zip(Event.model_fields, row, strict=True)))


def key_row(key: KeyEntry, since: float) -> tuple[str, str, str, str, float]:
    """A key as it is stored."""
    return key.id, key.name, key.sha256, key_settings(key), since


def key_settings(key: KeyEntry) -> str:
    """Limits and former texts of a key, as they are stored."""
    return KeySettings(limits=key.limits, former=key.former, earlier=key.earlier).for_disk()


def key_of(id_: str, name: str, sha256: str, settings: str) -> KeyEntry:
    """Reads a key."""
    stored = KeySettings.model_validate_json(settings)
    return KeyEntry(
        id=id_,
        name=name,
        sha256=sha256,
        limits=stored.limits,
        former=stored.former,
        earlier=stored.earlier,
    )

"""The JSON documents of the first build: programs that read them find every field in today's, so `version` is 1 still.

`json_v1.txt` has the fields that documents had before names and packages changed (the parent of commit 6b63dcf3), by
document; those of a stored plan are the fields under `plan.deployments[].plan`. A field that has to go, or to change its
meaning, raises `version` of its document, and is written down in decision 99.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.cli.output import OUTPUT_VERSION
from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.status import STATUS_VERSION, FleetStatus
from sparkfleet.doctor.findings import Finding
from sparkfleet.doctor.report import REPORT_VERSION
from sparkfleet.fabric.discovery import DiscoveredLinks
from sparkfleet.fabric.netplan import PortPlan
from sparkfleet.fleet.planning.fleet_decision import PlannedDeployment
from sparkfleet.knowledge.rules.rules import Rule
from sparkfleet.planner.types.node_load import NodeLoad
from sparkfleet.planner.types.plan import InfeasibleDeployment
from sparkfleet.staging.settings import Staged
from sparkfleet.values import Value

FIRST = (Path(__file__).parent / "json_v1.txt").read_text().split()
DOCUMENTS: Mapping[str, type[Value]] = {
    "plan.deployments[]": PlannedDeployment,
    "plan.refused[]": InfeasibleDeployment,
    "plan.nodes[]": NodeLoad,
    "status": FleetStatus,
    "describe.events[]": Event,
    "doctor.findings[]": Finding,
    "inspect.checkpoint": Checkpoint,
    "models": Staged,
    "explain.rule": Rule,
    "fabric": DiscoveredLinks,
    "fabric.ports[]": PortPlan,
}


def fields(schema: Mapping[str, Any], known: Mapping[str, Any], seen: tuple[str, ...] = ()) -> Iterator[str]:
    """Every field of a document as a path: `.groups[].ladder[].reason`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from fields(known[name], known, (*seen, name))
        return
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from fields(choice, known, seen)
    items = [schema["items"]] if isinstance(schema.get("items"), dict) else []
    for item in (*items, *schema.get("prefixItems", ())):
        yield from (f"[]{path}" for path in fields(item, known, seen))
    if isinstance(others := schema.get("additionalProperties"), dict):
        yield from (f"{{}}{path}" for path in fields(others, known, seen))
    for name, value in schema.get("properties", {}).items():
        yield f".{name}"
        yield from (f".{name}{path}" for path in fields(value, known, seen))


def fields_of(document: str) -> set[str]:
    schema = TypeAdapter(DOCUMENTS[document]).json_schema(mode="serialization")
    return {f"{document}{path}" for path in fields(schema, schema.get("$defs", {}))}


def test_every_document_of_the_first_build_has_its_version_still():
    assert (OUTPUT_VERSION, STATUS_VERSION, REPORT_VERSION) == (1, 1, 1)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_field_of_the_first_build_went(document):
    own = {one for one in FIRST if one.startswith(f"{document}.")}
    others = {one for other in DOCUMENTS if other.startswith(f"{document}.") for one in fields_of(other)}
    assert own - others
    assert sorted(own - others - fields_of(document)) == []


def test_a_field_that_goes_is_found(monkeypatch):
    monkeypatch.setitem(DOCUMENTS, "describe.events[]", NodeLoad)
    with pytest.raises(AssertionError, match="message"):
        test_no_field_of_the_first_build_went("describe.events[]")

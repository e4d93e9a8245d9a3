"""Documents on the head's disk: an older release reads what uses nothing newer, and nothing restarts because of their form.

`SPARKFLEET_GOLDEN=write pytest tests/controlplane/state/test_stored_documents.py` writes stored_defaults.json anew, for new
fields.
"""

import contextlib
import json
import os
import sqlite3
import typing
from pathlib import Path

import pytest
from control_values import deployment, inventory, plan
from launches import launches_for
from pydantic import BaseModel

from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.store_rows import KeySettings, desired_of, desired_row
from sparkfleet.controlplane.state.tables.draft_traffic import DraftSetup
from sparkfleet.controlplane.store_safety.applied import Applied
from sparkfleet.controlplane.store_safety.mark import StoreMark
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.group_launch import launch_digest
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.types.plan import Rejection, SkippedVariant
from sparkfleet.planner.types.rung_facts import PublishedRuns
from sparkfleet.specs.load import parse_deployment

EXAMPLES = sorted((Path(__file__).parents[2] / "specs" / "examples").glob("deployment-*.yaml"))
DEFAULTS = Path(__file__).with_name("stored_defaults.json")
STORED = (Desired, Standing, KeySettings, StoreMark, HeadAddress, Applied, DraftSetup)
"""Models whose JSON outlives a release. A role is written by each `up`."""

EARLIER = {
    *("name", "model", "variants", "objective", "content", "needs", "license", "keys", "runtime", "command", "port"),
    *("health", "silence", "engine", "context", "concurrency", "parallel", "speculation", "image", "engine_args"),
    *("env", "nodes", "replicas", "memory"),
}  # fmt: skip
"""Every field of a deployment that a release before media_domains, trust_remote_code, aliases, endpoints, external and
loop_tokens knew; it refused all others."""
EARLIER_CANDIDATE = {
    *("model", "shape", "engine", "engine_version", "runtime", "python", "image", "speculation", "context", "concurrency"),
    *("device", "dtype", "quant", "kv_dtype", "batch_tokens", "kv_cache_bytes", "memory_fraction", "speculative"),
    *("engine_args", "env", "command", "port", "health"),
}  # fmt: skip


def desired(spec=None, planned=None):
    spec = spec or deployment()
    return Desired(spec=spec, plan=planned or plan(spec.name), generation=3, who="me", since=1.0)


def rich_plan():
    """A plan in which everything optional is given."""
    planned = plan(
        rungs=2,
        speculation=Speculation(method="mtp", tokens=3, topk=2, busy=1, busy_from=8),
        batch_tokens=2048,
        env=(("A", "sealed:1:x"),),
        engine_args=("--x", "1"),
        media_domains=("a.example",),
        trust_remote_code=True,
    )
    (group,) = planned.groups
    published = PublishedRuns(rows=2, sources=("s",), same=True, alone=20.5)
    rung = group.ladder[0].model_copy(update={"published": published, "worth": 2.5, "rules": ("r",)})
    return planned.model_copy(
        update={
            "groups": (group.model_copy(update={"ladder": (rung, *group.ladder[1:]), "vision": False}),),
            "left_out": (SkippedVariant(variant=0, model="m", reason="r"),),
            "rejected": (Rejection(what="w", reason="r", why="memory", tps=1.0),),
            "drivers": (("spark1", "580"),),
        }
    )


def test_an_older_release_reads_a_deployment_that_uses_nothing_newer():
    spec, planned = (json.loads(text) for text in desired_row(desired())[:2])
    assert spec.keys() <= EARLIER
    assert planned["groups"][0]["ladder"][0]["candidate"].keys() <= EARLIER_CANDIDATE
    assert spec == {"name": "tiny", "model": "builtin:tiny"}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_what_is_stored_is_read_as_it_was(file):
    one = desired(parse_deployment(file.read_text(), file.name), rich_plan())
    *row, name = desired_row(one)
    assert desired_of(tuple(row)) == one
    assert name == one.name
    applied = Applied(deployments=(one,))
    assert Applied.model_validate_json(applied.for_disk()) == applied


def test_a_restart_of_the_controller_restarts_no_engine(tmp_path):
    store = Store(tmp_path / "s.db")
    before, _ = store.deployments.put(deployment(), rich_plan(), "me")
    store.close()
    again = Store(tmp_path / "s.db")
    assert digests(again.deployments.desired()["tiny"]) == digests(before)
    assert again.deployments.put(deployment(), rich_plan(), "me") == (before, False)
    again.close()


def test_a_store_in_the_former_form_restarts_no_engine_and_gets_no_new_generation(tmp_path):
    """Every field was written; a release that was upgraded finds such rows."""
    store = Store(tmp_path / "s.db")
    before, _ = store.deployments.put(deployment(), rich_plan(), "me")
    store.groups.set_standing("tiny", 1, 0, Standing(tries=1))
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "s.db")) as db:
        for table in ("deployments", "history"):
            full = (before.spec.model_dump_json(), before.plan.model_dump_json())
            db.execute(f"UPDATE {table} SET spec = ?, plan = ?", full)  # one of two names
        db.execute("UPDATE standings SET standing = ?", (Standing(tries=1).model_dump_json(),))
        db.commit()
    again = Store(tmp_path / "s.db")
    assert again.deployments.desired() == {"tiny": before}
    assert digests(again.deployments.desired()["tiny"]) == digests(before)
    assert again.deployments.put(deployment(), rich_plan(), "me") == (before, False)
    assert again.deployments.generations() == {"tiny": 1}
    assert again.groups.standings() == {("tiny", 1, 0): Standing(tries=1)}
    again.close()


def digests(one):
    return [launch_digest(launch, "f" * 64) for launch in launches_for(inventory(), one)]


def test_no_default_of_a_stored_field_changes():
    """A stored document without the field would mean something else then. To change one, write the former default out in
    all stored documents (`controlplane/state/schema.py`), and then it here."""
    known, now = json.loads(DEFAULTS.read_text()), defaults()
    assert {name: value for name, value in now.items() if known.get(name, value) != value} == {}
    if os.environ.get("SPARKFLEET_GOLDEN") == "write":
        DEFAULTS.write_text(json.dumps(now, indent=1) + "\n")
        known = now
    assert now.keys() == known.keys(), (
        f"a new or removed field: run SPARKFLEET_GOLDEN=write pytest {__file__}"
    )


def defaults():
    """The default of each field that may be left out, of every model that is stored, by `Model.field`."""
    found = {}

    def add(model):
        if f"{model.__name__}:" in found:
            return
        found[f"{model.__name__}:"] = None
        for name, field in model.model_fields.items():
            if not field.is_required():
                value = field.get_default(call_default_factory=True)
                found[f"{model.__name__}.{field.serialization_alias or name}"] = json.loads(
                    json.dumps(value, default=plain)
                )
            for inner in models(field.annotation):
                add(inner)

    for model in STORED:
        add(model)
    return {name: value for name, value in sorted(found.items()) if not name.endswith(":")}


def plain(value):
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else dict(value)


def models(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from models(inner)


def test_a_diagnosis_and_a_rung_keep_the_names_of_earlier_releases():
    """The store of an earlier release is read, and an earlier release reads this one's."""
    diagnosis = Diagnosis(cause=Cause.MEMORY, summary="CUDA had no memory left.")
    rung = plan().groups[0].choice.model_copy(update={"pinned": ("context 8192",)})
    for one, earlier, words in (
        (diagnosis, "says", "CUDA had no memory left."),
        (rung, "said", ["context 8192"]),
    ):
        stored = json.loads(one.model_dump_json())
        assert stored[earlier] == words
        assert type(one).model_validate(stored, strict=False) == one
    report = GroupReport(
        deployment="d", generation=1, phase=GroupPhase.FAILED, node="a", since=0.0, diagnosis=diagnosis
    )
    assert json.loads(report.model_dump_json())["diagnosis"]["says"] == diagnosis.summary

"""The store of the first build (commit 7a783744), as its own code wrote it: today's code reads it and starts what it has.

`first_build.sql` is a dump of two planned deployments: a ladder of five rungs, of which the second serves, and a pinned one
over two nodes with arguments of its own.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.state.launches import launch_for
from sparkfleet.controlplane.state.store import Store
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.specs.load import load_inventory

DUMP = Path(__file__).with_name("first_build.sql")
SPARKS = Path(__file__).parents[3] / "docs" / "examples" / "inventory-two-sparks.yaml"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file as the first build left it."""
    file = tmp_path / "sparkfleet.db"
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.executescript(DUMP.read_text())
    return file


def known_part(now: Any, before: Any) -> Any:
    """Of a document of today the fields that the former one had."""
    return {key: known_part(now[key], before[key]) for key in before} if isinstance(before, dict) else now


def test_deployments_positions_and_events_are_read(path: Path) -> None:
    store = Store(path)
    found = store.deployments.desired()
    assert {name: (one.generation, one.who, one.since) for name, one in found.items()} == {
        "qwen3.6-27b": (1, "me@laptop", 1795370000.0),
        "qwen3-235b": (1, "me@laptop", 1795370000.0),
    }
    standing = Standing(rung=1, passed=("TypeError in tokenizer_manager.py",))
    assert store.groups.standings() == {("qwen3.6-27b", 1, 0): standing}
    assert store.groups.starts() == {("qwen3.6-27b", 1, 0): {"spark1": "boot-1"}}
    assert [event.message for event in store.events.read()] == ["serves"]
    store.close()


def test_each_candidate_is_the_one_that_was_stored(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        stored = {name: json.loads(text) for name, text in db.execute("SELECT name, plan FROM deployments")}
    store = Store(path)
    for name, one in store.deployments.desired().items():
        now = json.loads(one.plan.model_dump_json())
        assert len(now["groups"]) == len(stored[name]["groups"]) == 1
        for before, after in zip(
            stored[name]["groups"][0]["ladder"], now["groups"][0]["ladder"], strict=True
        ):
            assert known_part(after["candidate"], before["candidate"]) == before["candidate"]
    store.close()


def test_its_groups_can_be_launched(path: Path) -> None:
    store = Store(path)
    inventory = load_inventory(SPARKS)
    for name, one in store.deployments.desired().items():
        launch = launch_for(inventory, one, (name, 1, 0), 0)
        assert isinstance(launch, GroupLaunch)
        assert launch.candidate == one.plan.groups[0].choice.candidate, name
    store.close()

"""The engine of a group by Ray Serve: by its list if that has one replica, else chosen by Serve."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkfleet.errors import ControlError
from sparkfleet.gateway.engine import serve_picker
from sparkfleet.gateway.engine.serve_picker import ServePicker
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

ONE, TWO = ({"url": f"http://10.0.0.{number}:8000", "group": "tiny/g1/0"} for number in (1, 2))
MODEL = ModelEntry(name="tiny", groups=(GroupEntry(app="tiny--g1-0"),), deployment="group", state="ready")
BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "serve_picker.py"


class Handle:
    """A handle of Ray Serve, as far as it is used."""

    def __init__(self, *listed: dict[str, str], chosen: dict[str, str], available: bool = True) -> None:
        replicas = {number: SimpleNamespace(replica_metadata=one) for number, one in enumerate(listed)}
        self._router = SimpleNamespace(
            _asyncio_router=SimpleNamespace(
                _deployment_available=available, _request_router=SimpleNamespace(curr_replicas=replicas)
            )
        )
        self.chosen = chosen
        self.calls = 0

    @contextlib.asynccontextmanager
    async def choose_replica(self, **given: Any) -> AsyncIterator[Any]:
        assert given == {"_reserve": False}
        self.calls += 1
        yield SimpleNamespace(replica_metadata=self.chosen)


async def prepared(handle: Handle, secret_of: Any = lambda mark: "0" * 64) -> ServePicker:
    picker = ServePicker(secret_of, lambda deployment, app: handle)
    await picker.prepare(MODEL.deployment, "tiny--g1-0")
    handle.calls = 0
    return picker


async def test_the_one_replica_in_serves_list_is_found_without_a_call() -> None:
    handle = Handle(ONE, chosen=TWO)
    picker = await prepared(handle)
    found = await picker.pick(MODEL, MODEL.groups, exclude=frozenset())
    assert found is not None
    assert (found.url, found.group, found.app, handle.calls) == (ONE["url"], "tiny/g1/0", "tiny--g1-0", 0)
    assert found.token


@pytest.mark.parametrize(
    "handle",
    [
        Handle(chosen=TWO),
        Handle(ONE, TWO, chosen=TWO),
        Handle(ONE, chosen=TWO, available=False),
        Handle({"url": ONE["url"]}, chosen=TWO),
    ],
    ids=["none listed", "being replaced", "not available", "without its group"],
)
async def test_otherwise_serve_chooses(handle: Handle) -> None:
    picker = await prepared(handle)
    found = await picker.pick(MODEL, MODEL.groups, exclude=frozenset())
    assert found is not None
    assert (found.url, handle.calls) == (TWO["url"], 1)


async def test_a_replica_that_has_failed_is_not_taken_from_the_list() -> None:
    handle = Handle(ONE, chosen=TWO)
    picker = await prepared(handle)
    found = await picker.pick(MODEL, MODEL.groups, exclude={ONE["url"]})
    assert found is not None
    assert (found.url, handle.calls) == (TWO["url"], 1)


async def test_a_ray_with_other_attributes_costs_time_and_no_answer() -> None:
    handle = Handle(ONE, chosen=TWO)
    del handle._router._asyncio_router
    picker = await prepared(handle)
    found = await picker.pick(MODEL, MODEL.groups, exclude=frozenset())
    assert found is not None
    assert (found.url, handle.calls) == (TWO["url"], 1)


async def test_an_engine_whose_secret_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def secret_of(mark: object) -> str:
        raise ControlError("no file", means="", do="")

    monkeypatch.setattr(serve_picker, "PICK_S", 0.2)
    picker = await prepared(Handle(ONE, chosen=ONE), secret_of)
    assert await picker.pick(MODEL, MODEL.groups, exclude=frozenset()) is None


@pytest.mark.full
def test_a_real_serve_lists_the_replica_that_it_chooses() -> None:
    """Ray's private attributes are those of the pinned release: the benchmark fails if the list has no engine."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--requests", "64", "--rounds", "1"],
        capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(r"from the list [\d.]+ µs, chosen by Serve [\d.]+ µs: \d+ times as much", done.stdout)
    assert found is not None, done.stdout

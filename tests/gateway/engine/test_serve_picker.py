"""The engine of a group by Ray Serve."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sparkfleet.errors import ControlError
from sparkfleet.gateway.access.keys import engine_token
from sparkfleet.gateway.engine import serve_picker
from sparkfleet.gateway.engine.serve_picker import ServePicker
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

APP = "tiny--g1-0"
URL = "http://10.0.0.1:8000"
MODEL = ModelEntry(name="tiny", groups=(GroupEntry(app=APP),), deployment="group", state="ready")


class Handle:
    """A handle of Ray Serve, as far as it is used, whose one replica has this metadata."""

    def __init__(self, **metadata: str) -> None:
        self.metadata = metadata

    @contextlib.asynccontextmanager
    async def choose_replica(self, **given: Any) -> AsyncIterator[Any]:
        assert given == {"_reserve": False}
        yield SimpleNamespace(replica_metadata=self.metadata)


Secret = Callable[[object], str]


def picker_of(handle: Handle, secret_of: Secret = lambda mark: f"secret {mark}") -> ServePicker:
    return ServePicker(secret_of, lambda deployment, app: handle)  # type: ignore[arg-type,return-value]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_picker, "PICK_S", 0.2)


async def test_the_engine_is_that_of_the_chosen_replica_with_a_token_of_its_own_secret() -> None:
    picker = picker_of(Handle(url=URL, group="tiny/g1/0", secret="0a"))
    found = await picker.pick(MODEL, MODEL.groups, exclude=frozenset())
    assert found is not None
    assert (found.url, found.group, found.app) == (URL, "tiny/g1/0", APP)
    assert found.token == engine_token(b"secret 0a", "tiny/g1/0")


@pytest.mark.parametrize("metadata", [{}, {"url": URL}, {"group": "tiny/g1/0"}])
async def test_a_replica_that_is_no_group_is_none(metadata: dict[str, str]) -> None:
    assert await picker_of(Handle(**metadata)).pick(MODEL, MODEL.groups, exclude=frozenset()) is None


async def test_an_engine_that_has_failed_the_request_is_not_picked_again() -> None:
    picker = picker_of(Handle(url=URL, group="tiny/g1/0"))
    assert await picker.pick(MODEL, MODEL.groups, exclude={URL}) is None


async def test_an_engine_whose_secret_cannot_be_read_is_none() -> None:
    def secret_of(mark: object) -> str:
        raise ControlError("no file", means="", do="")

    picker = picker_of(Handle(url=URL, group="tiny/g1/0"), secret_of)
    assert await picker.pick(MODEL, MODEL.groups, exclude=frozenset()) is None


async def test_a_handle_is_kept_while_its_application_exists() -> None:
    asked: list[str] = []

    def handle_of(deployment: str, app: str) -> Handle:
        asked.append(app)
        return Handle(url=URL, group="tiny/g1/0")

    picker = ServePicker(lambda mark: "0" * 64, handle_of)  # type: ignore[arg-type]
    for existing in ({APP}, set[str](), {APP}):
        await picker.prepare("group", APP)
        await picker.pick(MODEL, MODEL.groups, exclude=frozenset())
        picker.forget(existing)
    assert asked == [APP, APP]

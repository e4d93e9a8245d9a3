"""Order in which a picker takes the groups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from static_picker import StaticPicker

from sparkfleet.gateway.engine import endpoints as module
from sparkfleet.gateway.engine.endpoints import EngineEndpoint, first_found
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

GROUPS = tuple(GroupEntry(app=app) for app in ("a", "b"))
A, B = (EngineEndpoint(url=f"http://{app}:1", app=app) for app in "ab")
NONE = frozenset[str]()
SILENT = object()


class Told:
    """Answers by application: an engine, none, an error, or silence."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(self, group: GroupEntry) -> EngineEndpoint | None:
        self.asked.append(group.app)
        answer = self.answers[group.app]
        if answer is SILENT:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert answer is None or isinstance(answer, EngineEndpoint)
        return answer


async def test_the_first_group_is_asked_first() -> None:
    told = Told({"a": A, "b": B})
    assert await first_found(GROUPS, told, exclude=NONE, limit_s=5) == A
    assert told.asked == ["a"]


@pytest.mark.parametrize("answer", [None, RuntimeError("no such application"), SILENT, A])
async def test_one_without_an_engine_is_passed_over(answer: object) -> None:
    found = await first_found(GROUPS, Told({"a": answer, "b": B}), exclude={A.url}, limit_s=2)
    assert found == B


async def test_a_replacement_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    answers = iter([A, None, B])

    async def find(group: GroupEntry) -> EngineEndpoint | None:
        return next(answers)

    assert await first_found(GROUPS[:1], find, exclude={A.url}, limit_s=5) == B


@pytest.mark.parametrize("groups", [GROUPS, GROUPS[:1]], ids=["two", "one"])
@pytest.mark.parametrize("answer", [None, SILENT, A])
async def test_it_is_not_waited_for_longer_than_the_limit(
    answer: object, groups: tuple[GroupEntry, ...]
) -> None:
    told = Told({"a": answer, "b": answer})
    assert await first_found(groups, told, exclude={A.url}, limit_s=0.02) is None
    assert told.asked


async def test_groups_that_fail_are_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(dict.fromkeys("ab", RuntimeError("no such application")))
    assert await first_found(GROUPS, told, exclude=NONE, limit_s=5) is None
    assert told.asked == ["a", "b"]
    assert "there is no engine of a: RuntimeError('no such application')" in caplog.text


async def test_without_groups_there_is_nobody_to_ask() -> None:
    assert await first_found((), Told({}), exclude=NONE, limit_s=5) is None


async def test_the_fake_knows_the_engines_of_each_group() -> None:
    model = ModelEntry(name="m", groups=GROUPS, deployment="group", state="ready")
    again = A.model_copy(update={"url": "http://a:2"})
    picker = StaticPicker([A, again, B])
    assert await picker.pick(model, GROUPS, exclude=NONE) == A
    assert await picker.pick(model, GROUPS, exclude={A.url}) == again
    assert await picker.pick(model, GROUPS[1:], exclude=NONE) == B
    assert await picker.pick(model, GROUPS[1:], exclude={B.url}) is None

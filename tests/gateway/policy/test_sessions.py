"""Sessions that a client names stay where their prompts are cached, as long as that is worth the wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkfleet.engines.fake import FakeEngine
from sparkfleet.gateway.client_request import ClientRequest
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.policy import sessions
from sparkfleet.gateway.policy.sessions import SessionPlace, Sessions
from sparkfleet.gateway.request.requirements import Requirements
from sparkfleet.gateway.routing_table import GroupEntry, GroupSpeed, ModelEntry

if TYPE_CHECKING:
    from conftest import OpenDoor

SPEED = GroupSpeed(prefill_tps=1000, alone_tps=20, together_tps=60, concurrency=4)
A, B = (GroupEntry(app=app, concurrency=4, speed=SPEED) for app in "ab")
LONG = Requirements(tokens=8200, prompt_tokens=8000)


def chosen(observed: ObservedGroups, needs: Requirements, session: str) -> str:
    return observed.forecasts([A, B], needs, "m", session)[0].group.app


def test_a_session_stays_until_waiting_costs_more_than_its_prompt() -> None:
    observed = ObservedGroups()
    observed.sessions.note("k:s", "b", 7900)
    observed.begin("b")
    assert chosen(observed, LONG, "k:s") == "b"
    assert chosen(observed, LONG, "k:other") == chosen(observed, LONG, "") == "a"
    for _ in range(12):
        observed.begin("b", 2000)
    assert chosen(observed, LONG, "k:s") == "a"


def test_a_lost_or_removed_group_is_forgotten() -> None:
    observed = ObservedGroups()
    observed.sessions.note("s", "b", 100)
    observed.fail("b")
    assert observed.sessions.place("s") is None
    observed.sessions.note("s", "b", 100)
    observed.follow([A])
    assert observed.sessions.place("s") is None


def test_a_bounded_number_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST", 2)
    known = Sessions()
    for name in ("one", "two", "one", "three"):
        known.note(name, "a", 5)
    known.note("", "a", 5)
    assert [known.place(name) is not None for name in ("one", "two", "three", "")] == [
        True,
        False,
        True,
        False,
    ]
    assert known.place("one") == SessionPlace("a", 5)


@pytest.mark.parametrize(
    "header",
    [
        "x-session-id",
        "x-smg-routing-key",
        "X-Claude-Code-Session-Id",
        "session-id",
        "session_id",
        "thread-id",
    ],
)
async def test_requests_of_a_session_go_to_one_engine_and_keys_do_not_share_names(
    open_door: OpenDoor, header: str
) -> None:
    engines = [FakeEngine(model="tiny", token="internal-token") for _ in range(2)]
    groups = tuple(GroupEntry(app=f"app-{number}", concurrency=4, speed=SPEED) for number in range(2))
    entry = ModelEntry(name="tiny", groups=groups, deployment="engine", state="ready")
    door = await open_door(engines=engines, models=[entry])
    for number in range(6):
        body = door.body("/v1/completions", prompt=f"{number} " + "word " * 90)
        url = door.url + "/v1/completions"
        async with door.http.post(url, json=body, headers={header: "s-1"}) as response:
            assert response.status == 200
    assert sorted(len(engine.requests) for engine in engines) == [0, 6]
    assert all(name.startswith(door.entry.id + ":") for name in door.gateway.proxy.observed.sessions._places)
    assert door.gateway.proxy.observed.pending("app-0") == door.gateway.proxy.observed.pending("app-1") == 0


def test_agents_of_a_session_have_places_of_their_own() -> None:
    def named(*headers: tuple[bytes, bytes]) -> str:
        return ClientRequest("POST", "/v1/messages", list(headers)).session

    main, agent = (b"x-claude-code-session-id", b"s1"), (b"x-claude-code-agent-id", b"a1")
    other = (b"x-claude-code-agent-id", b"a2")
    assert named(main) == "s1"
    assert len({named(main), named(main, agent), named(main, other)}) == 3
    assert named(agent, main) == named(main, agent)
    assert named(main, (b"x-claude-code-agent-id", b"\xff")) == "s1"
    assert named((b"session-id", b"s"), (b"thread-id", b"t1")) != named(
        (b"session-id", b"s"), (b"thread-id", b"t2")
    )

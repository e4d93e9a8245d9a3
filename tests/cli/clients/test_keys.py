"""Limits of keys as people write and read them."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest
from open_client import OpenClient
from typer.testing import CliRunner

from sparkfleet.cli.clients import keys as verb
from sparkfleet.cli.clients.key_limits import expiry, words_of
from sparkfleet.controlplane.state.api_keys import KeyRow
from sparkfleet.errors import ControlError, SpecError
from sparkfleet.gateway.routing_table import KeyLimits


class Fleet(OpenClient):
    """A controller's client that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.rows: list[KeyRow] = []
        self.inventory = SimpleNamespace(fleet="home")

    async def find_controller(self) -> Fleet:
        return self

    def is_down(self) -> None:
        return

    async def create_key(self, name: str, limits: KeyLimits) -> dict[str, object]:
        self.calls.append((name, limits))
        return {"id": "key-1", "name": name, "key": "sk-sf-x"}

    async def limit_key(self, name: str, limits: KeyLimits) -> dict[str, object]:
        self.calls.append((name, limits))
        return {"id": "key-1", "name": name}

    async def rotate_key(self, name: str, grace_s: float) -> dict[str, object]:
        self.calls.append((name, grace_s))
        return {"id": "key-1", "name": name, "key": "sk-sf-y", "late": ["a"]}

    async def revoke_key(self, name: str) -> dict[str, object]:
        self.rows = [row for row in self.rows if row.name != name]
        return {"name": name, "late": []}

    async def keys(self) -> list[KeyRow]:
        return self.rows


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    fake = Fleet()
    monkeypatch.setattr(verb, "open_session", lambda _: fake)
    return fake


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(verb.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_limits_reach_the_controller(fleet: Fleet) -> None:
    options = ("--requests-per-minute", "60", "--tokens-per-minute", "9000", "--concurrent", "4", "--batch")
    assert "sk-sf-x" in invoke("create", "ci", *options, "--expires", "30d")
    ((name, limits),) = fleet.calls
    assert isinstance(limits, KeyLimits)
    assert (
        name,
        limits.requests_per_minute,
        limits.tokens_per_minute,
        limits.concurrent,
        limits.priority,
    ) == (
        "ci",
        60,
        9000,
        4,
        "batch",
    )
    assert limits.expires is not None
    assert abs(limits.expires - time.time() - 30 * 86400) < 60


@pytest.mark.parametrize("name", ["", ".", "a\nb", "two words", "\x1b[31m", "x" * 64])
def test_a_name_that_no_key_can_have_is_refused_before_the_fleet_is_asked(fleet: Fleet, name: str) -> None:
    with pytest.raises(ControlError, match="cannot name a key"):
        invoke("create", name)
    assert fleet.calls == []


def test_the_list_has_its_columns(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb.console, "width", 200)
    fleet.rows = [KeyRow(id="key-1", name="ci", created=0.0, used=86400.0, may_use=("tiny", "big"))]
    head, row = invoke("list").splitlines()
    assert re.split(r" {2,}", head.strip()) == ["name", "id", "created", "last used", "limits", "may use"]
    name, key_id, created, used, limits, may_use = re.split(r" {2,}", row.strip())
    assert (name, key_id, limits, may_use) == ("ci", "key-1", "–", "tiny, big")
    assert created < used


def test_a_rotated_key_is_shown_once_and_its_grace_is_given(fleet: Fleet) -> None:
    assert "sk-sf-y" in invoke("rotate", "ci", "--grace", "12h")
    assert fleet.calls == [("ci", 43200)]
    invoke("rotate", "ci")
    assert fleet.calls[-1] == ("ci", 0)


def test_a_grace_that_is_too_long_is_a_mistake(fleet: Fleet) -> None:
    """It was a traceback."""
    invoke("rotate", "ci", "--grace", "90d")
    with pytest.raises(SpecError, match="longer than 90 days"):
        invoke("rotate", "ci", "--grace", "91d")
    assert fleet.calls == [("ci", 90 * 86400)]


def test_limits_are_listed(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb.console, "width", 200)
    limits = KeyLimits(requests_per_minute=60, priority="batch", expires=time.time() - 5)
    fleet.rows = [KeyRow(id="key-1", name="ci", created=0.0, limits=limits, former_until=time.time() + 90)]
    shown = invoke("list")
    assert "60 requests/min, batch, expired" in shown
    assert "old text until" in shown


def test_an_expiry_in_the_past_is_a_mistake() -> None:
    with pytest.raises(SpecError, match="in the past"):
        expiry("2020-01-31")
    assert expiry("2999-01-31") > 3e10


LIMITS = KeyLimits(requests_per_minute=60, concurrent=4, priority="batch", expires=4e9, admin=True)


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        (("--concurrent", "2"), {"concurrent": 2}),
        (("--requests-per-minute", "0"), {"requests_per_minute": None}),
        (
            ("--tokens-per-minute", "9000", "--no-batch"),
            {"tokens_per_minute": 9000, "priority": "interactive"},
        ),
        (("--expires", "never"), {"expires": None}),
        (("--no-admin",), {"admin": False}),
        (("--admin-only",), {"inference": False}),
    ],
)
@pytest.mark.parametrize("name", ["ci", "key-1"])
def test_a_change_of_one_limit_leaves_the_others(
    fleet: Fleet, name: str, options: tuple[str, ...], changed: dict[str, object]
) -> None:
    """`keys limit NAME --expires 90d`, which the alert about its end has, made a limited key unlimited."""
    fleet.rows = [KeyRow(id="key-1", name="ci", created=0.0, limits=LIMITS)]
    invoke("limit", name, *options)
    assert fleet.calls == [(name, LIMITS.model_copy(update=changed))]


def test_a_key_for_administration_stays_one_when_its_end_is_moved(fleet: Fleet) -> None:
    """It became a key for models, without an admin's rights."""
    only = KeyLimits(admin=True, inference=False, expires=4e9)
    fleet.rows = [KeyRow(id="key-1", name="boss", created=0.0, limits=only)]
    assert "admin only" in invoke("limit", "boss", "--expires", "90d")
    ((_, limits),) = fleet.calls
    assert isinstance(limits, KeyLimits)
    assert (limits.admin, limits.inference) == (True, False)
    with pytest.raises(SpecError, match="without an admin's rights it has none"):
        invoke("limit", "boss", "--no-admin")
    invoke("limit", "boss", "--no-admin", "--no-admin-only")
    assert fleet.calls[-1] == ("boss", KeyLimits(expires=4e9))


def test_without_a_limit_nothing_changes(fleet: Fleet) -> None:
    with pytest.raises(SpecError, match="No limit of ci is given"):
        invoke("limit", "ci")
    assert fleet.calls == []


def test_an_admin_key_is_made(fleet: Fleet) -> None:
    invoke("create", "boss", "--admin")
    ((_, made),) = fleet.calls
    assert made == KeyLimits(admin=True)
    assert words_of(KeyLimits(admin=True)) == "admin"


def test_a_key_for_administration_only_is_made(fleet: Fleet) -> None:
    invoke("create", "boss", "--admin-only")
    ((_, made),) = fleet.calls
    assert made == KeyLimits(admin=True, inference=False)
    assert words_of(made) == "admin only"


def test_the_remedy_for_an_end_is_one_that_is_accepted():
    """`or 0` was in it, which is refused as past."""
    with pytest.raises(SpecError, match="is no time") as caught:
        expiry("31.01.2027")
    assert caught.value.do == "Expected 12h, 30d, or a date such as 2027-01-31."


def test_to_revoke_the_last_key_of_a_deployment_names_it_and_the_command(fleet: Fleet) -> None:
    """Nothing but the refusals that its clients got showed it."""
    fleet.rows = [
        KeyRow(id="1", name="laptop", created=1.0, may_use=("big", "small")),
        KeyRow(id="2", name="phone", created=1.0, may_use=("small",)),
    ]
    shown = " ".join(invoke("revoke", "laptop").split())
    assert "No key that is left may use big, so every request for it is refused." in shown
    assert "`sparkfleet keys create laptop` makes a key that may." in shown
    fleet.rows.append(KeyRow(id="3", name="tablet", created=1.0, may_use=("small",)))
    assert "No key" not in invoke("revoke", "phone")

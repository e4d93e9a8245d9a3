import pytest
from pydantic import ValidationError

from sparkfleet.gateway.routing_table import GroupEntry, KeyEntry, KeyLimits, ModelEntry, RoutingTable

ALICE = KeyEntry(id="key-1", name="alice", sha256="0" * 64)
BOB = KeyEntry(id="key-2", name="bob", sha256="1" * 64)


def entry(name: str, *keys: str) -> ModelEntry:
    return ModelEntry(
        name=name, groups=(GroupEntry(app=f"app-{name}"),), deployment="engine", state="ready", keys=keys
    )


def test_a_key_has_at_least_one_right() -> None:
    assert KeyLimits().inference
    assert KeyLimits(admin=True, inference=False).admin
    with pytest.raises(ValidationError, match="needs inference or admin"):
        KeyLimits(inference=False)


def test_a_table_survives_json() -> None:
    starting = ModelEntry(
        name="qwen/qwen3",
        groups=(
            GroupEntry(app="a", vision=True, tools=None, context=8192, concurrency=4),
            GroupEntry(app="b", ready=False),
        ),
        deployment="d",
        state="starting",
        detail="loading weights, 40 of 100 GiB",
        retry_after_s=30,
        created=1700000000,
        context=32768,
        keys=("alice",),
    )
    table = RoutingTable(version=7, models={"qwen/qwen3": starting, "é": entry("é")}, keys=(ALICE, BOB))
    assert RoutingTable.model_validate_json(table.model_dump_json()) == table


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"version": "1"}', '{"version": 1, "surprise": 2}', '{"models": {"a": {"name": "a"}}}'],
)
def test_what_is_not_a_table_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        RoutingTable.model_validate_json(text)


def test_an_unknown_state_is_refused() -> None:
    with pytest.raises(ValidationError, match="state"):
        ModelEntry.model_validate({"name": "a", "deployment": "d", "state": "sleeping"})


def test_a_model_without_keys_is_for_all_of_them_and_one_with_keys_only_for_those() -> None:
    table = RoutingTable(models={"b": entry("b"), "a": entry("a", "alice"), "c": entry("c", "bob", "carol")})
    assert [model.name for model in table.visible_to(ALICE)] == ["a", "b"]
    assert [model.name for model in table.visible_to(BOB)] == ["b", "c"]


def test_tables_are_frozen() -> None:
    with pytest.raises(ValidationError):
        RoutingTable().version = 2  # type: ignore[misc]

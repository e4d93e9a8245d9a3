"""Values of environment variables: sealed in all that is stored, and opened for the engine alone."""

import sqlite3

import pytest
from control_values import deployment, plan

from sparkfleet.controlplane.sealing import (
    has_open_values,
    may_have_open_values,
    sealed,
    sealed_deployment,
)
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.tables import deployments
from sparkfleet.errors import ControlError
from sparkfleet.runtime.sealed_env import EnvSealer
from sparkfleet.specs.deployment import Deployment

SEALER = EnvSealer(b"s" * 43)
SECRET = "hf_0123456789abcdef"
ENV = {"HF_TOKEN": SECRET, "VLLM_LOGGING_LEVEL": "DEBUG"}


def test_a_deployment_and_each_rung_of_its_plan_have_it_sealed():
    spec, found = sealed(deployment(env=ENV), plan(groups=2, rungs=2, env=tuple(ENV.items())), SEALER)
    text = spec.model_dump_json() + found.model_dump_json()
    assert SECRET not in text
    assert text.count("sealed:1:") == 1 + 2 * 2
    assert text.count("DEBUG") == 1 + 2 * 2, "settings stay readable"
    assert sealed(spec, found, SEALER) == (spec, found)


def test_variables_of_variants_are_sealed_too():
    spec = Deployment(
        name="both",
        variants=({"model": "builtin:tiny", "env": {"HF_TOKEN": SECRET}}, {"model": "builtin:tiny-moe"}),
    )
    assert has_open_values(spec)
    found = sealed_deployment(spec, SEALER)
    assert SECRET not in found.model_dump_json()
    assert not has_open_values(found)
    assert found.variants[1].env is None


def test_what_an_older_release_stored_is_sealed_and_overwritten(tmp_path):
    store = Store(tmp_path / "s.db")
    store.deployments.put(deployment(env={**ENV, "B": "old"}), plan(env=(("B", "old"), *ENV.items())), "me")
    before, _ = store.deployments.put(deployment(env=ENV), plan(env=tuple(ENV.items())), "me")
    store.deployments.seal(SEALER)
    after = store.deployments.desired()["tiny"]
    store.close()
    assert after.generation == before.generation
    assert (after.spec, after.plan) == sealed(before.spec, before.plan, SEALER)
    for file in tmp_path.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file
    with sqlite3.connect(tmp_path / "s.db") as db:
        assert db.execute("SELECT count(*) FROM history WHERE spec LIKE '%sealed:1:%'").fetchone() == (2,)


def test_one_that_another_fleet_sealed_is_refused_in_a_request_and_stays_in_the_store(tmp_path):
    foreign = EnvSealer(b"t" * 43).seal("HF_TOKEN", SECRET)
    spec = deployment(env={"HF_TOKEN": foreign, "B": "2"})
    with pytest.raises(ControlError, match="HF_TOKEN cannot be opened"):
        sealed(spec, plan(), SEALER)
    store = Store(tmp_path / "s.db")
    store.deployments.put(spec, plan(), "me")
    store.deployments.seal(SEALER)
    assert store.deployments.desired()["tiny"].spec == spec
    store.close()


def test_a_long_history_without_open_values_is_not_parsed_at_a_start(tmp_path, monkeypatch):
    """1,200 generations took 20 s on the event loop, and the guard (12 s) ended the controller at every start."""
    store = Store(tmp_path / "s.db")
    for n in range(4):
        store.deployments.put(deployment(env={"VLLM_LOGGING_LEVEL": "DEBUG"}), plan(concurrency=n + 1), "me")
    store.deployments.put(
        deployment("sealed", env={"HF_TOKEN": SEALER.seal("HF_TOKEN", SECRET)}), plan(), "me"
    )
    store.deployments.remove("tiny")
    store.close()
    store = Store(tmp_path / "s.db")
    parsed = []
    monkeypatch.setattr(deployments, "desired_of", parsed.append)
    store.deployments.seal(SEALER)
    store.close()
    assert parsed == []


def test_a_start_that_is_ended_while_it_seals_has_sealed_what_it_reached(tmp_path, monkeypatch):
    store = Store(tmp_path / "s.db")
    for n in range(3):
        store.deployments.put(deployment(env=ENV), plan(concurrency=n + 1, env=tuple(ENV.items())), "me")
    reached = []

    def killed(*values):
        reached.append(values)
        if len(reached) == 3:
            raise KeyboardInterrupt
        return sealed(*values)

    monkeypatch.setattr(deployments, "sealed", killed)
    with pytest.raises(KeyboardInterrupt):
        store.deployments.seal(SEALER)
    history = store.deployments.history("tiny")
    store.close()
    assert [has_open_values(one.spec) for one in history] == [False, False, True]


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ('{"env":{"HF_TOKEN":"hf_0"}}', True),
        ('{"variants":[{"env":null},{"env":{"HF_TOKEN":"hf_0"}}]}', True),
        ('{"env":{"HF_TOKEN":"sealed:1:x","NCCL_DEBUG":"INFO","B":""}}', False),
        ("{}", False),
        ("[", True),
    ],
)
def test_a_stored_document_that_may_have_open_values(document, found):
    assert may_have_open_values(document) is found

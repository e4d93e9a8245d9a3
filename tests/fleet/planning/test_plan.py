import pytest
import statuses
from control_values import plan as planned

from sparkfleet.fleet.planning import plan as plan_module
from sparkfleet.fleet.planning.fleet_decision import decide
from sparkfleet.fleet.planning.plan import missing_keys, plan_deployments
from sparkfleet.fleet.session import Session
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.report.rendezvous import open_rendezvous
from sparkfleet.planner.types.plan import Plan
from sparkfleet.specs.deployment import Deployment


def deployment(*keys, name="tiny"):
    return Deployment(name=name, model="builtin:tiny", keys=keys or None)


def test_keys_that_nobody_has_are_named_with_the_command_that_makes_one():
    assert missing_keys(
        [deployment("ux", "me"), deployment("me", name="b"), deployment(name="c")], ["me"]
    ) == ("warning: tiny: `keys:` names ux, which nobody has. `sparkfleet keys create ux` makes it.",)
    assert missing_keys([deployment()], []) == ()


async def test_the_warning_of_a_pair_is_one_line_of_a_plan(tmp_path, monkeypatch, sparks, ask):
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path / "state"))
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    exposed = ("spark1", "spark2")

    async def fleet_of(*_):
        return sparks(2, assumed=False).model_copy(update={"exposed": exposed})

    async def checkpoints_for(*_):
        return {spec.model: known_checkpoint(spec.model)}

    monkeypatch.setattr(plan_module, "fleet_of", fleet_of)
    monkeypatch.setattr(plan_module, "checkpoints_for", checkpoints_for)
    spec = ask(engine="vllm", parallel={"tp": 2})
    lines = []
    async with Session(tmp_path / "inventory.yaml", lambda event: lines.append(event.line)) as session:
        found = await plan_deployments(session, [spec])
    assert [line for line in lines if "ranks meet" in line] == [
        *open_rendezvous(found.decision.plan, exposed)
    ]
    assert len([line for line in lines if "ranks meet" in line]) == 1


async def test_a_fleet_that_never_ran_knows_the_key_that_its_first_start_makes(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path / "state"))
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    lines = []
    async with Session(tmp_path / "inventory.yaml", lambda event: lines.append(event.line)) as session:
        await plan_deployments(session, [deployment("default"), deployment("ux", name="b")])
    about_keys = [line for line in lines if "`keys:`" in line]  # not other fleets on this machine
    assert about_keys == [
        "warning: b: `keys:` names ux, which nobody has. `sparkfleet keys create ux` makes it."
    ]


async def test_keys_of_a_store_that_cannot_be_read_are_not_called_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path / "state"))
    (tmp_path / "state" / "home").mkdir(parents=True)
    (tmp_path / "state" / "home" / "sparkfleet.db").write_bytes(b"no database" * 1000)
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    lines = []
    async with Session(tmp_path / "inventory.yaml", lambda event: lines.append(event.line)) as session:
        await plan_deployments(session, [deployment("ux")])
    assert not [line for line in lines if "`keys:`" in line]


def test_a_deployment_under_a_new_name_names_the_old_one(monkeypatch):
    """The old one went on beside it, and nothing named it."""
    made = {name: planned(name) for name in ("new", "old", "other")}
    other = made["other"].groups[0].choice.candidate.model_copy(update={"model": "org/other"})
    rung = made["other"].groups[0].choice.model_copy(update={"candidate": other})
    groups = (made["other"].groups[0].model_copy(update={"ladder": (rung,)}),)
    made["other"] = made["other"].model_copy(update={"groups": groups})
    status = statuses.fleet(
        *(
            statuses.deployment().model_copy(update={"name": name, "plan": made[name]})
            for name in ("old", "other")
        )
    )
    monkeypatch.setattr(
        "sparkfleet.fleet.planning.fleet_decision.planned_with",
        lambda *_, **__: Plan(deployments=(made["new"],)),
    )
    specs = [deployment(name=name) for name in ("new", "old")]
    nodes = Fleet(name="home", nodes=())
    assert decide(specs[:1], nodes, status, {}).planned[0].change.same_model == ("old",)
    assert decide(specs, nodes, status, {}).planned[0].change.same_model == (), "it is in the files, too"
    assert decide(specs[:1], nodes, None, {}).planned[0].change.same_model == ()


@pytest.mark.parametrize("retry", [False, True])
def test_retry_alone_sizes_each_replica_again(monkeypatch, retry):
    asked = []

    def plan_fleet(*_, resized, **__):
        asked.append(resized)
        return Plan(deployments=())

    monkeypatch.setattr("sparkfleet.fleet.planning.fleet_decision.plan_fleet", plan_fleet)
    decide([deployment()], Fleet(name="home", nodes=()), None, {}, retry=retry)
    assert asked == [retry]

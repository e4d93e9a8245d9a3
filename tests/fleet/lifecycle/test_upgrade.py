"""An upgrade in which a node is lost midway; `tests/integration/test_upgrade.py` has the whole on real Ray."""

import asyncio

import pytest
from open_client import OpenClient
from statuses import deployment, fleet, report

from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.errors import ControlError, NodeError
from sparkfleet.fleet.lifecycle.upgrade import UpgradePlan, plan_upgrade, upgrade
from sparkfleet.specs.load import parse_inventory

KEY = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


class Running(OpenClient):
    """A fleet that runs one release, and starts with another."""

    version = "1.0.0"

    async def fleet(self):
        return fleet(nodes=tuple(NodeReport(name=name, joined=True) for name in "ab"))

    async def bring_up(self, *_):
        return self

    async def until_serving(self, _):
        """At once."""


class Losing:
    """A session in which `b` is lost in this step, once, with the programs on its nodes and its lifecycle."""

    inventory = parse_inventory(
        "fleet: home\nhead: a\nnodes:\n  a: {address: local}\n"
        f'  b: {{address: 10.0.0.2, user: u, host_key: "{KEY}"}}\n'
    )

    def __init__(self, *lost_in, for_good=False):
        self.programs = self.lifecycle = self
        self.running = Running()
        self.steps, self.tokens, self.without = [], set(), set()
        self.role_of = {}
        self._lost_in, self._for_good = lost_in, for_good

    async def pythons(self, on_event, wheels):
        return {"a": "/new", "b": "/new"}

    async def upgrade_step(self, node, step, token, *, granted=False):
        self.steps.append((step, node))
        self.tokens.add(token)
        if node == "b" and step in self._lost_in:
            if not self._for_good:
                self._lost_in = ()
            raise NodeError("b: the connection was lost.")
        return {"version": "2.0.0", "ray": "2.60.0", **self.role_of.get(node, {"outcome": "/outcome"})}

    async def pythons_in_use(self):
        return PLAN.pythons

    async def find_controller(self):
        return self.running

    async def controller(self):
        return self

    async def until_up(self, result, on_event):
        assert result == "/outcome"

    async def until_joined(self, client, on_event, without=()):
        self.without = set(without)


PLAN = UpgradePlan("1.0.0", {"a": "/old", "b": "/old"}, frozenset())


async def test_a_node_that_is_lost_while_it_is_frozen_lets_all_go_on():
    session = Losing("freeze")
    with pytest.raises(NodeError):
        await upgrade(session, PLAN)
    assert {step for step, _ in session.steps} == {"try", "begin", "freeze", "thaw"}
    assert len(session.tokens) == 1


async def test_a_node_that_is_lost_after_the_change_ends_no_upgrade_that_has_succeeded():
    """The command ended with that node's error, although every other one ran the new release."""
    session, lines = Losing("settle"), []
    session.lifecycle = session.endpoint = session.running
    done = await upgrade(session, PLAN, lambda event: lines.append(getattr(event, "line", "")))
    assert (done.changed, done.former, done.version) == (True, "1.0.0", "2.0.0")
    assert "b keeps the former release's role until the next upgrade: b: the connection was lost." in lines
    assert not {"back", "thaw"} & {step for step, _ in session.steps}


async def test_an_upgrade_whose_confirmation_was_open_while_another_one_ended_is_refused():
    """It would have ended Ray to start the release that runs already, and taken its own way back to the wrong one."""
    session = Losing()
    session.running.version = "2.0.0"
    with pytest.raises(ControlError, match=r"the fleet runs sparkfleet 2\.0\.0 now"):
        await upgrade(session, PLAN)
    assert {step for step, _ in session.steps} == {"try"}


async def test_the_head_allows_an_upgrade_before_any_other_node_is_claimed():
    session = Losing("begin")
    with pytest.raises(NodeError):
        await upgrade(session, PLAN)
    assert session.steps[2:] == [("begin", "a"), ("begin", "b"), ("thaw", "a"), ("thaw", "b")]


async def test_a_node_that_is_lost_while_it_is_ended_takes_all_back():
    """The others had ended, and stayed down."""
    session = Losing("end")
    with pytest.raises(ControlError, match="the connection was lost") as found:
        await upgrade(session, PLAN)
    assert session.steps[-2:] == [("back", "a"), ("back", "b")]
    assert "runs sparkfleet 1.0.0 again" in found.value.means


async def test_a_node_that_stays_lost_does_not_hide_that_the_others_run_the_former_release():
    """The error was that the fleet is down, and that `up` starts it."""
    session = Losing("end", "back", for_good=True)
    with pytest.raises(ControlError, match="the connection was lost") as found:
        await upgrade(session, PLAN)
    assert session.without == {"b"}
    assert "The fleet runs sparkfleet 1.0.0 again on a; engines went on." in found.value.means
    assert "which release b will run" in found.value.means
    assert "`sparkfleet upgrade` tries again" in found.value.do


async def test_a_head_without_a_former_role_is_reported_as_down():
    """It was a KeyError."""
    session = Losing("end")
    session.role_of["a"] = {}
    with pytest.raises(ControlError, match="a has no role of sparkfleet") as found:
        await upgrade(session, PLAN)
    assert "The fleet is down" in found.value.means


async def test_a_node_that_has_never_run_the_former_release_is_not_waited_for():
    session = Losing("end")
    session.role_of["b"] = {}
    with pytest.raises(ControlError) as found:
        await upgrade(session, PLAN)
    assert session.without == {"b"}
    assert "again; engines went on" in found.value.means


async def test_a_node_that_does_not_join_the_former_release_is_named(monkeypatch):
    session = Losing("end")

    async def missing(*_, **__):
        raise ControlError("b did not join the fleet within 90 s.")

    monkeypatch.setattr(session, "until_joined", missing)
    with pytest.raises(ControlError) as found:
        await upgrade(session, PLAN)
    assert "again; engines went on. b did not join" in found.value.means


async def test_a_store_that_was_put_back_is_reported_with_what_is_not_in_it():
    session = Losing("end")
    session.role_of["a"] = {"outcome": "/outcome", "set_aside": "/backups/x.db", "lost": ["later"]}
    with pytest.raises(ControlError) as found:
        await upgrade(session, PLAN)
    assert "/backups/x.db" in found.value.means
    assert "not in it: later." in found.value.means


@pytest.mark.parametrize("fails", [False, True])
async def test_after_ctrl_c_while_the_former_release_ends_it_runs_again(fails):
    """Ray stayed stopped (SIGSTOP) on every node: neither `thaw` nor `back` was sent."""
    session = Losing()
    ending, go_on = asyncio.Event(), asyncio.Event()
    step = session.upgrade_step

    async def slow(node, name, *more, **options):
        answer = await step(node, name, *more, **options)
        if name == "end":
            ending.set()
            await go_on.wait()
            if fails:
                raise NodeError("b: the connection was lost.")
        return answer

    session.upgrade_step = slow
    running = asyncio.create_task(upgrade(session, PLAN))
    await ending.wait()
    running.cancel()
    await asyncio.sleep(0)
    assert "back" not in {name for name, _ in session.steps}, "after the end, not during it"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert session.steps[-2:] == [("back", "a"), ("back", "b")]


async def test_groups_on_demand_are_not_expected_to_be_ready_again():
    ready = [report().model_copy(update={"deployment": name}) for name in ("coder", "always")]
    loaded, always = [
        deployment(one, state="ready").model_copy(
            update={"name": one.deployment, "on_demand": one.deployment == "coder"}
        )
        for one in ready
    ]
    unloaded = deployment(state="unloaded").model_copy(update={"name": "eyes", "on_demand": True})

    class Planned(OpenClient):
        version = "1.0.0"
        inventory = Losing.inventory

        async def find_controller(self):
            return self

        async def fleet(self):
            return fleet(
                loaded, always, unloaded, nodes=tuple(NodeReport(name=name, joined=True) for name in "ab")
            )

        async def pythons_in_use(self):
            return {"a": "/old"}

    session = Planned()
    session.programs = session
    plan = await plan_upgrade(session)
    assert ({group[0] for group in plan.ready}, plan.loaded) == ({"always"}, ("coder",))

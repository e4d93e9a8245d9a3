"""Groups that have to come back after a node's reboot, of values; the reboot itself is one of the lab."""

import pytest
from fake_channel import FakeChannel

from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus, NodeReport
from sparkfleet.errors import ControlError, NodeError
from sparkfleet.fleet.events import ignored
from sparkfleet.fleet.lifecycle.reboot import boot_of, not_back, reboot, served_by, survive_reboot
from sparkfleet.fleet.session import Session
from sparkfleet.group.report import GroupPhase, GroupReport, RankReport
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.unreachable import ConnectionLost


def group(name, replica=0, *, since=1.0, node="b", phase=GroupPhase.READY):
    ranks = (RankReport(rank=0, node="a"), RankReport(rank=1, node=node))
    return GroupReport(
        deployment=name, generation=1, replica=replica, phase=phase, node="a", since=since, ranks=ranks
    )


def status(*groups, boot="one", joined=True):
    names = dict.fromkeys(one.deployment for one in groups)
    deployments = tuple(
        DeploymentStatus(
            name=name, generation=1, state="ready", detail="", who="", since=0.0, plan=None,
            groups=tuple(one for one in groups if one.deployment == name),
        )
        for name in names
    )  # fmt: skip
    return FleetStatus(
        fleet="home", sparkfleet="1", endpoint="", gateways=(), deployments=deployments, last_event=0,
        nodes=(NodeReport(name="b", joined=joined, boot=boot),),
    )  # fmt: skip


def test_what_a_node_serves_has_a_rank_on_it_and_is_ready():
    seen = status(group("here"), group("elsewhere", node="c"), group("begins", phase=GroupPhase.STARTING))
    assert served_by(seen, "b") == {("here", 1, 0): 1.0}


def test_a_group_that_is_ready_since_before_the_reboot_is_not_back_yet():
    before = served_by(status(group("pair"), group("pair", 1), group("other")), "b")
    assert not_back(status(group("pair"), group("pair", 1), group("other")), before, "b") == ("pair", "other")
    one = status(group("pair", since=9.0), group("pair", 1), group("other", since=9.0))
    assert not_back(one, before, "b") == ("pair",)
    every = status(group("pair", since=9.0), group("pair", 1, since=9.0), group("other", since=9.0))
    assert not_back(every, before, "b") == ()


def test_a_node_that_has_not_joined_has_no_boot():
    assert boot_of(status(boot="two"), "b") == "two"
    assert boot_of(status(boot="two", joined=False), "b") == ""
    assert boot_of(status(), "moon") == ""


async def test_the_machine_of_the_command_itself_is_not_rebooted(tmp_path):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    async with Session(file) as session:
        with pytest.raises(ControlError, match="is the machine on which this command runs"):
            await survive_reboot(session, "a", ignored)


@pytest.mark.parametrize(
    ("answer", "begins"),
    [
        (Completed(argv=(), exit_code=0, stdout="", stderr=""), True),
        (Completed(argv=(), exit_code=1, stdout="", stderr="sudo: a password is required"), False),
        (ConnectionLost("spark1: the connection ended"), True),
        (NodeError("sudo was not found"), False),
    ],
)
async def test_a_password_is_noticed_by_the_reboot_itself(answer, begins):
    """`sudo -n -l systemctl reboot` succeeds although it needs one, if another line of sudoers has NOPASSWD."""
    listed = Completed(argv=(), exit_code=0, stdout="/usr/bin/systemctl reboot", stderr="")
    channel = FakeChannel("spark1", {("sudo", "-n", "-l"): listed, ("sudo", "-n", "systemctl"): answer})
    assert await reboot(channel) is begins

import hashlib
import json
import shlex
import time

import pytest
from fake_channel import FakeChannel

from sparkfleet.errors import NodeError
from sparkfleet.fabric import apply as module
from sparkfleet.fabric.apply import HELPER, Helper, NotPermitted, apply_plan, find_helper, full_ping, sudoers
from sparkfleet.fabric.netplan import FabricPlan, NodePlan, PortPlan
from sparkfleet.remote.channel import Completed

DIGEST = hashlib.sha256(HELPER).hexdigest()
SUDO = ("sudo", "-n", "/usr/local/sbin/sparkfleet-rails")


def shown(version=DIGEST):
    return json.dumps(
        {"backend": "netplan", "version": version, "own": "x", "others": {"/etc/netplan/a.yaml": ["e"]}}
    )


def node(user="nvidia", **answers):
    given = {("id",): f"{user}\n", ("printenv", "HOME"): "/home/nvidia\n"}
    return FakeChannel("spark1", given | answers.get("more", {}))


# --- permission -------------------------------------------------------------------------------------------------------


async def test_an_installed_helper_is_used():
    helper = await find_helper(node(more={SUDO: shown()}))
    assert helper == Helper(
        node="spark1", argv=SUDO, backend="netplan", own="x", others={"/etc/netplan/a.yaml": ("e",)}
    )


async def test_root_needs_no_sudo():
    channel = node("root", more={("python3", "-I", "-c"): shown("")})
    helper = await find_helper(channel)
    assert helper.argv == ("python3", "-I", "-c", HELPER.decode())
    assert not any(call.argv[0] == "sudo" for call in channel.calls)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (NodeError("sudo was not found"), "nvidia may not"),
        (
            Completed(argv=SUDO, exit_code=1, stdout="", stderr="sudo: a password is required"),
            "nvidia may not",
        ),
        (shown("0" * 64), f"{SUDO[-1]} is from another release of sparkfleet"),
    ],
)
async def test_without_permission_the_error_has_the_commands_that_give_it(answer, why):
    channel = node(more={SUDO: answer})
    with pytest.raises(NotPermitted, match=f"spark1: {why}") as caught:
        await find_helper(channel)
    copy = "/home/nvidia/.local/share/sparkfleet/sparkfleet-rails"
    assert channel.files[copy] == HELPER
    assert f"sudo install -D -o root -g root -m 0755 {copy} {SUDO[-1]}" in caught.value.do
    assert sudoers("nvidia") in caught.value.do


async def test_a_login_of_a_directory_service_is_permitted_with_its_domain():
    """`id -un` has the domain even if the login was without it; such a node was refused."""
    with pytest.raises(NotPermitted, match=r"spark1: anna@corp\.example may not") as caught:
        await find_helper(node("anna@corp.example", more={SUDO: NodeError("no")}))
    assert "echo 'anna@corp.example ALL=(root) NOPASSWD: " in caught.value.do


@pytest.mark.parametrize("home", ["/home/jürgen müller", "/home/anna@example.com"])
async def test_the_commands_take_a_home_with_spaces_and_letters_of_any_language(home):
    channel = node(more={SUDO: NodeError("no"), ("printenv", "HOME"): f"{home}\n"})
    with pytest.raises(NotPermitted) as caught:
        await find_helper(channel)
    copy = f"{home}/.local/share/sparkfleet/sparkfleet-rails"
    assert channel.files[copy] == HELPER
    assert shlex.split(caught.value.do.splitlines()[1])[-2:] == [copy, SUDO[-1]]


@pytest.mark.parametrize(
    "given",
    [
        {("printenv", "HOME"): "/home/$(reboot)\n"},
        {("id",): "x ALL=(ALL) NOPASSWD: ALL #\n"},
        {SUDO: "[]"},
        {("printenv", "HOME"): "/home/../etc\n"},
    ],
)
async def test_output_of_a_node_never_gets_into_a_shell_command(given):
    with pytest.raises(NodeError) as caught:
        await find_helper(node(more={SUDO: NodeError("no"), **given}))
    assert "$(" not in caught.value.do
    assert "ALL #" not in caught.value.do
    assert ".." not in caught.value.do


def test_the_permission_is_for_one_program():
    assert sudoers("nvidia") == "nvidia ALL=(root) NOPASSWD: /usr/local/sbin/sparkfleet-rails"


# --- the change -------------------------------------------------------------------------------------------------------

PLAN = FabricPlan(
    nodes=tuple(
        NodePlan(node=f"s{n}", ports=(PortPlan(netdev="enp1s0f1np1", address=f"192.168.100.{10 + n}/24"),))
        for n in (1, 2)
    )
)


class Fleet:
    """Two nodes whose helpers record their requests."""

    def __init__(self, monkeypatch, *, deaf=(), failing=(), silent=(), down_s=0.0):
        self.told, self.silent = [], silent
        up_at = time.monotonic() + down_s
        self.helpers = {
            name: Helper(node=name, argv=("rails", name), backend="netplan", own="", others={})
            for name in ("s1", "s2")
        }
        self.failing = failing
        self.channels = {name: self.channel(name) for name in self.helpers}
        self.fresh = []

        async def run_batch(channel, argvs, **_):
            code = 1 if channel.node in deaf or time.monotonic() < up_at else 0
            return [Completed(argv=tuple(argv), exit_code=code, stdout="", stderr="") for argv in argvs]

        monkeypatch.setattr(module, "run_batch", run_batch)
        monkeypatch.setattr(module, "SETTLE_PAUSE_S", 0.1, raising=False)

    def channel(self, name):
        def helper(call):
            self.told.append((name, *call.argv[2:]))
            if (name, call.argv[2]) in self.failing:
                return Completed(argv=call.argv, exit_code=1, stdout="", stderr="no such device")
            return Completed(
                argv=call.argv, exit_code=0, stdout=json.dumps({"token": f"token{name}"}), stderr=""
            )

        return FakeChannel(name, {("rails", name): helper, ("true",): ""})

    async def reopen(self, name):
        if name in self.silent:
            raise NodeError(f"{name}: no answer")
        self.fresh.append(self.channel(name))
        return self.fresh[-1]

    async def apply(self, *nodes):
        return await apply_plan(
            PLAN, self.helpers, self.channels, self.reopen, nodes=nodes or self.helpers, rollback_s=30
        )


async def test_a_change_that_works_everywhere_is_confirmed_through_new_connections(monkeypatch):
    fleet = Fleet(monkeypatch)
    assert (await fleet.apply()).kept
    assert sorted(fleet.told) == [
        ("s1", "apply", "30"),
        ("s1", "confirm", "tokens1"),
        ("s2", "apply", "30"),
        ("s2", "confirm", "tokens2"),
    ]
    (begun,) = (call for call in fleet.channels["s1"].calls if "apply" in call.argv)
    assert json.loads(begun.stdin) == {
        "ports": [{"netdev": "enp1s0f1np1", "address": "192.168.100.11/24", "mtu": 9000}]
    }
    assert all("confirm" not in call.argv for call in fleet.channels["s1"].calls)
    assert all(channel.is_closed for channel in fleet.fresh)


async def test_the_links_of_other_nodes_stay_up(monkeypatch):
    """For a new node at a switch, the rails of all were set anew, under the engines that spoke over them."""
    fleet = Fleet(monkeypatch)
    assert (await fleet.apply("s2")).kept
    assert {name for name, *_ in fleet.told} == {"s2"}


async def test_links_have_time_to_come_back(monkeypatch):
    """A ping over a rail without a link ends at once: five of them were over before any link was back."""
    assert (await Fleet(monkeypatch, down_s=0.15).apply()).kept


async def test_a_rail_without_an_answer_reverts_everything(monkeypatch):
    fleet = Fleet(monkeypatch, deaf=("s2",))
    applied = await fleet.apply()
    assert applied.checked
    assert applied.problems == (
        "enp1s0f1np1 of s2 does not reach 192.168.100.11 with packets of 9000 bytes.",
    )
    assert {told[1] for told in fleet.told} == {"apply", "rollback"}


async def test_a_node_that_refuses_reverts_the_others(monkeypatch):
    fleet = Fleet(monkeypatch, failing=(("s2", "apply"),))
    applied = await fleet.apply()
    assert (applied.problems, applied.checked) == (("s2: no such device.",), False)
    assert ("s1", "rollback", "tokens1") in fleet.told
    assert ("s2", "rollback", "tokens2") not in fleet.told


async def test_a_node_that_is_lost_is_never_confirmed(monkeypatch):
    fleet = Fleet(monkeypatch, silent=("s2",))
    applied = await fleet.apply()
    assert not applied.kept
    assert "reverts its change by itself" in applied.problems[0]
    assert [told for told in fleet.told if told[1] != "apply"] == [("s1", "rollback", "tokens1")]


def test_a_ping_that_fills_the_mtu():
    assert full_ping("e0", "10.0.0.1", 9000)[4:7] == ("do", "-s", "8972")

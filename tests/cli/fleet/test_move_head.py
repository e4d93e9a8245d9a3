"""`move-head`: its question and its lines if the head is lost."""

import time

import pytest

from sparkfleet.cli.fleet import move_head as verb
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.store_copies import StoreCopy
from sparkfleet.fleet.lifecycle.move_head import MovedHead
from sparkfleet.fleet.lifecycle.move_plan import CheckedCopy, LostHead, MovePlan

INVENTORY = (
    "fleet: home\nhead: spark1\nnodes:\n"
    '  spark1: {address: 10.0.0.1, user: u, host_key: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}\n'
    '  spark2: {address: 10.0.0.2, user: u, host_key: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}\n'
)
ADDRESS = HeadAddress(ray="10.0.0.2:1", api="http://127.0.0.1:1", gateway_host="10.0.0.2", gateway_port=8000)


@pytest.fixture
def lost(tmp_path, monkeypatch, sparkfleet):
    """Runs the verb on a fleet whose head is lost; `finds`: whether the lost one will find the new one."""
    file = tmp_path / "inventory.yaml"
    file.write_text(INVENTORY)

    async def planned(session, node):
        at = time.time() - 250
        copy = StoreCopy(name="x.db", at=at, occasion="change", bytes=1, deployments=("tiny (generation 3)",))
        kept = CheckedCopy("spark2", "/x.db", copy)
        replacement = LostHead(kept, (), ("spark1", *run.others_off))
        return MovePlan(
            "spark1", node, live=True, store="/store", settled=False, host="127.0.0.1", lost=replacement
        )

    def run(*argv, finds=True):
        async def moved(session, plan, on_event):
            return MovedHead(ADDRESS, finds)

        monkeypatch.setattr(verb, "plan_lost", planned)
        monkeypatch.setattr(verb, "move", moved)
        code, out, err = sparkfleet("move-head", "spark2", *argv, "-i", file)
        return code, " ".join(out.split()), " ".join(err.split())

    run.inventory, run.others_off = file, ()
    return run


def test_the_question_has_the_age_of_the_copy_and_what_is_lost(lost):
    code, _, err = lost("--lost")
    assert code != 0
    assert "spark2 keeps a copy of its store of " in err
    assert "4 min 10 s old: tiny (generation 3)." in err
    assert "What was applied since then is lost" in err
    assert "Make spark2 the head of fleet home with this copy?" in err
    assert lost.inventory.read_text() == INVENTORY


def test_the_new_head_is_in_the_inventory_and_the_return_of_the_old_one_is_announced(lost):
    code, out, _ = lost("--lost", "--yes")
    assert code == 0
    assert "spark2 is the head of fleet home." in out
    assert "If spark1 comes back with its disk, it joins as an ordinary node" in out
    assert "head: spark2" in lost.inventory.read_text()


def test_a_lost_head_that_would_come_back_as_a_second_one_is_named(lost):
    assert (
        "once it is on, `sparkfleet up` makes it an ordinary node" in lost("--lost", "--yes", finds=False)[1]
    )


def test_nodes_that_were_off_are_named_with_the_command_that_takes_them_in(lost):
    assert "not reached" not in lost("--lost", "--yes")[1]
    lost.inventory.write_text(INVENTORY)
    lost.others_off = ("spark3",)
    assert (
        "spark3: not reached, and connected to spark1 only. Once on, `sparkfleet up`"
        in lost("--lost", "--yes")[1]
    )


def test_a_replacement_cannot_be_cancelled_at_once(lost):
    code, _, err = lost("--lost", "--cancel")
    assert code == 1
    assert "exclude each other" in err


@pytest.mark.parametrize("finds", [True, False])
def test_an_ordinary_move_names_a_port_that_a_head_lost_before_would_look_at(lost, monkeypatch, finds):
    async def planned(session, node):
        return MovePlan("spark1", node, live=True, store="/store", settled=False, host="127.0.0.1")

    monkeypatch.setattr(verb, "plan_move", planned)
    code, out, _ = lost("--yes", finds=finds)
    assert code == 0
    assert ("The port of the fleet's Ray is taken on spark2" in out) is not finds


def test_a_cancelled_move_names_the_nodes_that_were_not_reached(lost, monkeypatch):
    async def undone(session, node, on_event):
        return (node,)

    monkeypatch.setattr(verb, "undo_move", undone)
    code, out, _ = lost("--cancel")
    assert code == 0
    assert "spark1 is the head, as before. spark2 was not reached. It has not taken over" in out

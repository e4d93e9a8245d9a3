"""Networks that are down, and an SSH identity that is missing. Two Sparks of a lab, real Ray and SSH, fake engines."""

import time

import pytest
import yaml
from asking import Asking
from node_faults import as_root
from pair_faults import HERE, PAIR, THERE, TWO, pids, whole_again
from pair_fleet import LINK

pytestmark = [pytest.mark.integration, pytest.mark.any_engine, pytest.mark.full, pytest.mark.timeout(900)]
LAN = "enP7s7"


@pytest.fixture
def fleet(pair):
    """Two Sparks; each test serves on them what it needs."""
    return pair


def test_with_both_rails_down_and_the_lan_up_the_node_is_named_and_the_group_comes_back_once(fleet):
    fleet.serve(fleet.anew(fleet.spec(HERE)))
    fleet.apply(fleet.anew(fleet.spec(TWO, text=PAIR)), "pair.yaml")
    before, alone = pids(fleet, "pair"), pids(fleet)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        fleet.lab.cut(LINK)
        fleet.until(lambda: "spark2 does not answer" in fleet.deployment("pair")["detail"], timeout=15)
        time.sleep(30)
        fleet.lab.mend(LINK)
        fleet.until(lambda: fleet.ready_group("pair"), timeout=300)
        whole_again(fleet, asking)
    assert pids(fleet) == alone, "the group on the head went on"
    assert set(asking.ends) == {"whole"}, asking.answers
    for node, pid in zip(("spark1", "spark2"), pids(fleet, "pair"), strict=True):
        ranks = [one for one, line in fleet.engines(node).items() if " pair " in f"{line} "]
        assert ranks == [pid], f"on {node}; before: {before}"


def test_a_rail_that_is_down_alone_is_named_although_the_node_behind_it_does_not_answer(fleet):
    fleet.serve(fleet.anew(fleet.spec(HERE)))
    fleet.lab.cut(LINK, 0)
    try:
        fleet.until(lambda: "no answer for" in fleet.ok("status"), timeout=30)
        time.sleep(5)
        (down,) = (words for words in fleet.fleet_status()["warnings"] if "no carrier" in words)
        assert down.startswith("spark1: rail enp1s0f1np1 has no carrier")
    finally:
        fleet.lab.mend(LINK, 0)
    fleet.until(lambda: fleet.fleet_status()["warnings"] == [], timeout=60)


def test_with_the_lan_down_and_the_rails_up_everything_serves_and_the_node_is_named(fleet):
    fleet.serve(fleet.anew(fleet.spec(TWO)))
    before = pids(fleet)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        as_root(fleet, "spark2", "ip", "link", "set", LAN, "down")
        try:
            time.sleep(20)
            assert fleet.is_ready()
            code, _, err = fleet.run("plan", fleet.write("other.yaml", fleet.spec(THERE)))
            assert (code, "spark2" in err) == (1, True), err
        finally:
            as_root(fleet, "spark2", "ip", "link", "set", LAN, "up")
        whole_again(fleet, asking)
    assert pids(fleet) == before
    assert set(asking.ends) == {"whole"}, asking.answers
    fleet.until(lambda: fleet.run("plan", str(fleet.directory / "other.yaml"))[0] in (0, 2), timeout=60)


def test_a_missing_identity_file_is_named_and_nothing_changes(fleet):
    fleet.serve(fleet.spec(HERE))
    inventory = yaml.safe_load((fleet.directory / "inventory.yaml").read_text())
    for node in inventory["nodes"].values():
        node["identity_file"] = "/nowhere/id_ed25519"
    without = fleet.write("without.yaml", yaml.safe_dump(inventory))
    for verb in (("status",), ("up",), ("apply", "--yes", str(fleet.directory / "deployment.yaml"))):
        code, out, err = fleet.run(*verb, "--inventory", without)
        assert code != 0
        assert "/nowhere/id_ed25519 does not exist" in " ".join(f"{out}{err}".split()), verb
    assert fleet.is_ready()

"""Custom workloads on a simulated Spark: any command that declares its memory, its port and its health."""

import json
import sys
import time

import pytest
from lab_fleet import CHECKOUT, LabFleet, lab_of

pytestmark = pytest.mark.integration

SERVER = CHECKOUT / "tests/integration/stand_ins/speech.py"
SPARK_MIB = 109866
"""What the lab's idle Spark has available."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with lab_of(1) as lab:
        lab.set("spark1", {"meminfo": "spark"})
        fleet = LabFleet(lab, tmp_path_factory.mktemp("custom"))
        fleet.ok("up")
        yield fleet
        fleet.ok("down")
        assert fleet.processes("spark1") == []


def custom(name, port):
    command = json.dumps([sys.executable, str(SERVER), "127.0.0.1", str(port)])
    return f"name: {name}\nmodel: speech/{name}\nengine: custom\ncommand: {command}\nport: {port}\nmemory: 20 GiB\n"


def test_of_two_groups_the_one_that_was_started_last_goes_for_a_shortage_and_comes_back(fleet):
    for name, port in (("older", 5005), ("newer", 5006)):
        fleet.apply(custom(name, port), f"{name}.yaml")
    before = fleet.group("older")["ranks"][0]["pid"]
    fleet.lab.set("spark1", {"holder_mib": str(SPARK_MIB - 2560)})  # 2.5 GiB left: short, and not yet wedged
    fleet.until(lambda: not fleet.is_ready("newer"), timeout=60)
    time.sleep(5)  # what it held is not back yet, and nobody else goes for that
    fleet.lab.set("spark1", {"holder_mib": "0"})
    fleet.until(lambda: fleet.is_ready("newer") and fleet.is_ready("older"), timeout=120)
    assert fleet.group("older")["ranks"][0]["pid"] == before, fleet.ok("describe", "older")
    assert "Only 2.5 GiB of memory are left on spark1: the group is stopped" in fleet.ok("describe", "newer")

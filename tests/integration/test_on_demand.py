"""Deployments on demand, on real Ray Serve: started by their first request, ended without one, and taking turns."""

import json
import threading

import pytest
from asking import Asking
from on_demand_spec import on_demand
from served_tiny import serve_tiny

from sparkfleet.controlplane.policy.demand.claim_room import LEAST_SERVED_S

pytestmark = [pytest.mark.integration, pytest.mark.any_engine]

SPARK_MIB = 109866
"""Memory that the lab's idle Spark has available."""
HELD_MIB = 61440
IDLE_S = 10


def state(fleet, name):
    return fleet.deployment(name)["state"]


def test_its_first_request_starts_it_and_it_ends_when_nobody_uses_it(fleet):
    serve_tiny(fleet)
    spec = on_demand("late", 5061, f"memory: 256 MiB\nidle: {IDLE_S}\n")
    out = fleet.apply(fleet.write("late.yaml", spec))
    assert "late is on demand: its next request starts it" in out
    assert (state(fleet, "late"), fleet.deployment("late")["groups"]) == ("unloaded", [])
    assert "No change" in fleet.apply(fleet.write("late.yaml", spec))
    assert fleet.chat("Hello", "late").strip()
    assert state(fleet, "late") == "ready"
    fleet.until(lambda: state(fleet, "late") == "unloaded", timeout=60)
    fleet.until(lambda: fleet.deployment("late")["groups"] == [], timeout=30)
    assert f"no request for {IDLE_S} s; its next request starts it" in fleet.ok("status")
    assert fleet.chat("Hello", "late").strip()
    fleet.until(lambda: state(fleet, "late") == "unloaded", timeout=60)
    fleet.apply(fleet.write("late.yaml", on_demand("late", 5061, "memory: 256 MiB\n")))
    assert "late is ready" in fleet.ok("load", "late")
    assert state(fleet, "late") == "ready"
    assert "late is unloaded: its memory is free." in fleet.ok("unload", "late")
    fleet.ok("delete", "--yes", "late")
    assert fleet.deployment("tiny")["state"] == "ready"


@pytest.mark.full
def test_an_edit_that_does_not_start_leaves_its_requests_to_the_generation_before(fleet):
    """The requests that wait included; each later load starts that one, until the edit is mended."""
    serve_tiny(fleet)
    served = on_demand("late", 5061, "memory: 256 MiB\n")
    fleet.apply(fleet.write("late.yaml", served))
    assert fleet.chat("Hello", "late").strip()
    fleet.ok("unload", "late")
    broken = fleet.write("late.yaml", served.replace('"--start-s"', '"--no-such-option", "--start-s"'))
    assert "late is on demand" in fleet.apply(broken)
    assert fleet.chat("Hello", "late").strip()
    assert "generation 2 did not start; generation 1 serves" in fleet.ok("status")
    assert "No change: late is loaded" in fleet.ok("load", "late")
    fleet.ok("unload", "late")
    found = fleet.deployment("late")
    assert (found["state"], found["instead"]) == ("unloaded", 1)
    assert "its next request starts generation 1, which served before" in found["detail"]
    assert "refused its arguments" in " ".join(fleet.ok("describe", "late").split())
    fleet.ok("load", "late")
    assert [one["generation"] for one in fleet.deployment("late")["groups"] if one["phase"] == "ready"] == [1]
    code, _, errors = fleet.run("apply", "--yes", "--retry", broken)
    assert (code, "generation 3 did not start; generation 1 serves" in errors) == (1, True), errors
    mended = served.replace('"--itl-ms", "5"', '"--itl-ms", "6"')
    fleet.apply(fleet.write("late.yaml", mended))
    assert state(fleet, "late") == "ready"
    fleet.ok("delete", "--yes", "late")


class Memory:
    """The memory of spark1, of which each engine that runs there holds as much as its deployment declares."""

    def __init__(self, pair):
        self._pair = pair
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def _follow(self):
        held = -1
        while not self._stop.wait(0.5):
            # Not `engines`: the process that holds the memory has the name of one.
            lines = self._pair.listed("spark1").values()
            found = sum("sparkfleet.engines.fake" in line for line in lines) * HELD_MIB
            if found != held:
                held = found
                self._pair.lab.set("spark1", {"holder_mib": str(min(held, SPARK_MIB - 8192))})

    def __enter__(self):
        self._pair.lab.set("spark1", {"meminfo": "spark"})
        self._thread.start()
        return self

    def __exit__(self, *args):
        self._stop.set()
        self._thread.join()
        self._pair.lab.heal("spark1")


@pytest.mark.full
def test_two_that_fit_only_alone_take_turns_under_load_and_no_request_fails(pair):
    for other in [one["name"] for one in pair.deployments()]:
        pair.ok("delete", "--yes", other)
    more = f"memory: {HELD_MIB // 1024} GiB\nnodes: [spark1]\n"
    with Memory(pair):
        for name, port in (("one", 5062), ("other", 5063)):
            assert "is on demand" in pair.apply(on_demand(name, port, more, start_s=3), f"{name}.yaml")
        with Asking(pair, "one", streams=2, tokens=60) as first:
            pair.until(lambda: first.ends["whole"] > 4, timeout=60)
            with Asking(pair, "other", streams=2, tokens=60) as second:
                pair.until(lambda: second.ends["whole"] > 4, timeout=LEAST_SERVED_S + 60)
                assert state(pair, "one") != "ready"
                before = first.ends["whole"]
                pair.until(lambda: first.ends["whole"] > before + 4, timeout=LEAST_SERVED_S + 60)
                assert state(pair, "other") != "ready"
        for asking in (first, second):
            assert set(asking.ends) == {"whole"}, [one for one in asking.answers if one["end"] != "whole"]
    events = json.loads(pair.ok("events", "one", "--json"))["events"]
    assert "it made room for other" in [one["message"] for one in events if one["kind"] == "unload"]
    for name in ("one", "other"):
        pair.ok("delete", "--yes", name)

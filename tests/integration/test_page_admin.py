"""Changes and logs over the page's API on a fleet that runs: through the gateway, Ray and the controller to the engines."""

import contextlib
import os
import signal

import httpx
import pytest
from on_demand_spec import on_demand

from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.runtime import processes

pytestmark = [pytest.mark.integration, pytest.mark.full]


class Api:
    """The page's API with an admin key."""

    def __init__(self, fleet, key):
        self._root = fleet.endpoint.removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {key}"}

    def __call__(self, method, path, status=200):
        """JSON of the answer, which has this status."""
        answer = httpx.request(method, self._root + path, headers=self._headers, timeout=30, trust_env=False)
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture
def api(fleet):
    fleet.apply(fleet.write("tiny.yaml", fleet.spec()))
    fleet.until(lambda: fleet.deployment()["state"] == "ready")
    yield Api(fleet, fleet.json("keys", "create", "boss", "--admin")["key"])
    fleet.ok("keys", "revoke", "boss")


def pids(fleet):
    return {one.pid for one in fleet.ranks()}


def test_an_admin_reads_logs_drains_restarts_stops_and_starts(fleet, api):
    log = api("GET", "/api/deployments/tiny/logs?lines=2000")
    assert log["node"] == "this"
    assert "on http://" in log["log"] or fleet.real, log
    assert "no log yet for rank 7" in api("GET", "/api/deployments/tiny/logs?rank=7", 409)["error"]["message"]

    api("PUT", "/api/nodes/this/drain")
    assert [one["node"] for one in fleet.json("status")["drained"]] == ["this"]
    api("DELETE", "/api/nodes/this/drain")
    assert fleet.json("status")["drained"] == []

    before, generation = pids(fleet), fleet.deployment()["generation"]
    stale = api("POST", f"/api/deployments/tiny/restart?generation={generation + 1}", 409)
    assert "nothing was changed" in stale["error"]["message"]
    api("POST", f"/api/deployments/tiny/restart?generation={generation}")
    fleet.until(lambda: fleet.deployment()["state"] == "ready" and not pids(fleet) & before)
    assert fleet.deployment()["generation"] == generation + 1

    assert "is kept" in api("POST", "/api/deployments/tiny/stop")["done"]
    fleet.until(lambda: fleet.deployment() is None and not fleet.ranks())
    fleet.until(lambda: "tiny" in [one["name"] for one in api("GET", "/api/fleet")["stopped"]], timeout=20)
    assert "generation" in api("POST", "/api/deployments/tiny/start")["done"]
    fleet.until(lambda: (fleet.deployment() or {}).get("state") == "ready")
    assert fleet.chat("What is a rail?")
    words = [event["message"] for event in fleet.json("describe", "tiny")["events"]]
    assert "deleted by boss (page)" in words
    assert words.count("applied by boss (page)") == 2


def test_an_admin_loads_and_unloads_what_is_on_demand(fleet, api):
    def shown():
        return next(one for one in api("GET", "/api/fleet")["deployments"] if one["name"] == "late")

    fleet.apply(fleet.write("late.yaml", on_demand("late", 5064, "memory: 256 MiB\nidle: 600\n")))
    fleet.until(
        lambda: "late" in [one["name"] for one in api("GET", "/api/fleet")["deployments"]], timeout=20
    )
    asleep = shown()
    assert (asleep["state"], asleep["groups"]) == ("unloaded", [])
    assert asleep["on_demand"]["planned"][0]["nodes"] == ["this"]
    path, exact = "/api/deployments/late", f"?generation={asleep['generation']}"
    assert "not on demand" in api("POST", "/api/deployments/tiny/load", 409)["error"]["message"]
    assert "starts once its memory is free" in api("POST", f"{path}/load{exact}")["done"]
    fleet.until(lambda: fleet.deployment("late")["state"] == "ready")
    fleet.until(lambda: (shown()["on_demand"]["ends_at"] or 0) > 0, timeout=20)  # the gateway's next report
    used = shown()["on_demand"]
    assert (used["idle_s"], used["in_flight"], used["planned"]) == (600, 0, [])
    assert used["start_s"] > 0
    assert "No change" in api("POST", f"{path}/load{exact}")["done"]
    assert api("POST", f"{path}/unload{exact}")["done"].startswith("late ends.")
    fleet.until(lambda: fleet.deployment("late")["groups"] == [])
    words = [event["message"] for event in fleet.json("describe", "late")["events"]]
    assert "loaded by boss (page)" in words
    assert "unloaded by boss (page)" in words
    fleet.ok("delete", "--yes", "late")


def test_without_its_controller_prompts_go_on_and_changes_are_refused(fleet, api):
    assert api("GET", "/api/fleet")["trouble"] == ""
    labelled = processes.labelled({LABEL: fleet.paths.label})
    (controller,) = (one.pid for one in labelled if "ray::ControllerActor" in one.command)
    os.kill(controller, signal.SIGSTOP)
    try:
        fleet.until(lambda: api("GET", "/api/fleet")["trouble"], timeout=8)
        assert [one["name"] for one in api("GET", "/api/fleet")["deployments"]] == ["tiny"]
        assert fleet.chat("What is a rail?")
        refused = api("PUT", "/api/nodes/this/drain", 503)["error"]["message"]
        assert refused.startswith("The controller does not answer.")
    finally:
        with contextlib.suppress(ProcessLookupError):  # its guard ends it after 12 s
            os.kill(controller, signal.SIGCONT)
    fleet.until(lambda: api("GET", "/api/fleet")["trouble"] == "", timeout=60)
    if fleet.json("status")["drained"]:  # it had got the change
        api("DELETE", "/api/nodes/this/drain")

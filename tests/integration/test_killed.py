"""Processes of one fleet that are killed while it serves: what goes on, and what comes back."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest
from served_tiny import Load, actors, engine_pid, group, is_down, models, ready, serve_tiny

from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.runtime import processes

pytestmark = [pytest.mark.integration, pytest.mark.any_engine]


@pytest.fixture(autouse=True)
def _serving(fleet):
    serve_tiny(fleet)


def test_kill_the_controller_and_no_request_fails(fleet):
    """Its state comes back from the store, its table from the groups; nobody else notices.

    Ray Serve may take seconds to list what runs: groups have reported by then.
    """
    (controller,), (serve,) = actors(fleet, "ControllerActor"), actors(fleet, "ServeController")
    with Load(fleet) as load:
        # A group is ready some moments before Serve lists its replica; one that is never listed cannot be reached.
        fleet.until(lambda: 200 in load.statuses)
        os.kill(serve, signal.SIGSTOP)
        try:
            os.kill(controller, signal.SIGKILL)
            fleet.until(lambda: actors(fleet, "ControllerActor") not in ([], [controller]))
            fleet.until(lambda: [one["phase"] for one in fleet.deployment()["groups"]] == ["ready"])
            time.sleep(3)  # longer than a gateway's poll
        finally:
            os.kill(serve, signal.SIGCONT)
        fleet.until(lambda: ready(fleet))
        time.sleep(3)  # longer than a gateway's poll: it has the new table
    assert set(load.statuses) == {200}
    assert len(load.statuses) > 20


@pytest.mark.full
def test_up_while_the_controller_is_restarted_leaves_ray_alone(fleet):
    """For some seconds nobody answers: who takes the fleet for down kills Ray, and with it the gateway."""
    (controller,) = actors(fleet, "ControllerActor")
    with Load(fleet) as load:
        os.kill(controller, signal.SIGKILL)
        fleet.ok("up")
        fleet.until(lambda: ready(fleet))
    assert set(load.statuses) == {200}


def test_kill_the_engine_under_load_and_only_its_own_streams_fail(fleet):
    """Two deployments: the group of one is replaced, and is 503 meanwhile; what the other streams arrives whole."""
    other = fleet.write("other.yaml", fleet.spec().replace("name: tiny", "name: other"))
    fleet.apply(other)
    victim = engine_pid(group(fleet))
    results, flowing = {}, threading.Event()

    def stream(name):
        with openai.OpenAI(base_url=fleet.endpoint, api_key=fleet.key, max_retries=0) as client:
            try:
                for count, _ in enumerate(
                    client.completions.create(
                        model=name,
                        prompt="Hello",
                        max_tokens=1900,
                        stream=True,
                        extra_body={"ignore_eos": True},
                    )
                ):
                    results[name] = count
                    if name == "tiny" and count == 5:
                        flowing.set()
            except openai.APIError as error:
                results[name] = error

    threads = [threading.Thread(target=stream, args=(name,)) for name in ("tiny", "other")]
    for thread in threads:
        thread.start()
    assert flowing.wait(60)
    os.kill(victim, signal.SIGKILL)
    response = fleet.until(lambda: refused(fleet), timeout=15, every=0.02)
    assert int(response.headers["retry-after"]) > 0
    assert response.json()["error"]["message"]
    for thread in threads:
        thread.join()
    assert isinstance(results["tiny"], openai.APIError), results
    assert isinstance(results["other"], int), results
    fleet.until(lambda: ready(fleet) and engine_pid(group(fleet)) != victim)
    fleet.ok("delete", "--yes", "other")


def refused(fleet):
    """The gateway's answer where it has nobody to ask; None if it has."""
    headers = {"authorization": f"Bearer {fleet.key}"}
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 1}
    response = httpx.post(f"{fleet.endpoint}/completions", json=body, headers=headers, timeout=30)
    return response if response.status_code == 503 else None


@pytest.mark.full
def test_kill_a_groups_actor_and_its_engine_is_adopted(fleet):
    """Fifteen minutes of loading are not thrown away because a small process died."""
    engine = engine_pid(group(fleet))
    (actor,) = actors(fleet, "ServeReplica:tiny")
    os.kill(actor, signal.SIGKILL)
    fleet.until(lambda: actors(fleet, "ServeReplica:tiny") not in ([], [actor]))
    fleet.until(lambda: ready(fleet) and group(fleet)["adopted"])
    assert engine_pid(group(fleet)) == engine


def test_kill_the_gateway_and_it_comes_back(fleet):
    (gateway,) = actors(fleet, "ServeReplica:gateway")
    os.kill(gateway, signal.SIGKILL)
    killed = time.monotonic()

    def answers():
        try:
            return client.completions.create(model="tiny", prompt="Hello", max_tokens=1)
        except openai.APIError:
            return None

    with openai.OpenAI(base_url=fleet.endpoint, api_key=fleet.key, max_retries=0, timeout=5) as client:
        fleet.until(answers, timeout=60)
    assert time.monotonic() - killed < 10, "decision 77: one gateway is enough because it is back soon"


@pytest.mark.full
def test_kill_all_of_ray_and_up_adopts_the_engine(fleet):
    """Ray is gone, controller and gateway with it; the engine lives on for its lease, and nothing is loaded twice."""
    engine = engine_pid(group(fleet))
    for process in processes.labelled({LABEL: fleet.paths.label}):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    assert is_down(fleet)
    fleet.ok("up")
    fleet.until(lambda: ready(fleet) and group(fleet)["adopted"])
    assert engine_pid(group(fleet)) == engine
    assert models(fleet)


def raylets(fleet):
    """Process ids of Ray's node processes."""
    found = set()
    for process in processes.labelled({LABEL: fleet.paths.label}):
        with contextlib.suppress(OSError):  # it may end meanwhile
            if b"raylet/raylet" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                found.add(process.pid)
    return found


@pytest.mark.full
def test_kill_ray_and_its_keeper_starts_it_again(fleet):
    engine = engine_pid(group(fleet))
    killed = raylets(fleet)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)

    def adopted():
        with contextlib.suppress(httpx.TransportError):
            return ready(fleet) and group(fleet)["adopted"]

    fleet.until(lambda: raylets(fleet) - killed)
    fleet.until(adopted)
    assert engine_pid(group(fleet)) == engine

"""The life of a deployment, and what dies on the way."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest
from live_fleet import TINY

from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.runtime import processes

pytestmark = [pytest.mark.integration, pytest.mark.any_engine]


class Load:
    """Requests in a thread, one after the other, as long as it is entered."""

    def __init__(self, fleet, model="tiny", max_tokens=4, pause=0.02):
        self.statuses = []
        """200, or an error in words."""
        self._fleet, self._model, self._max_tokens, self._pause = fleet, model, max_tokens, pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self):
        headers = {"authorization": f"Bearer {self._fleet.key}"}
        body = {"model": self._model, "prompt": "Hello", "max_tokens": self._max_tokens}
        with httpx.Client(base_url=self._fleet.endpoint, headers=headers, timeout=60) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post("/completions", json=body)
                    self.statuses.append(200 if answer.status_code == 200 else f"{answer}: {answer.text}")
                except httpx.HTTPError as error:
                    self.statuses.append(type(error).__name__)
                time.sleep(self._pause)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


@pytest.fixture(autouse=True)
def _serving(fleet):
    """Each test begins with `tiny` serving and nothing else, whatever the one before it did."""
    for other in [d["name"] for d in fleet.deployments() if d["name"] != "tiny"]:
        fleet.ok("delete", "--yes", other)
    # Also if it serves: the file before this one may have left it with another engine or other sizes.
    fleet.apply(fleet.write("tiny.yaml", fleet.spec()))
    fleet.until(lambda: ready(fleet) and len(fleet.deployment()["groups"]) == 1)


def group(fleet, name="tiny"):
    return fleet.deployment(name)["groups"][0]


def engine_pid(group):
    """The process of rank 0; None as long as it is not started."""
    return group["ranks"][0]["pid"] if group["ranks"] else None


def ready(fleet, name="tiny"):
    found = fleet.deployment(name)
    return found is not None and found["state"] == "ready"


def models(fleet):
    """Models that the endpoint lists."""
    with openai.OpenAI(base_url=fleet.endpoint, api_key=fleet.key) as client:
        return client.models.list().data


def test_applying_the_same_again_changes_nothing(fleet):
    file = fleet.write("tiny.yaml", fleet.spec())
    pid = engine_pid(group(fleet))
    assert fleet.run("plan", file)[0] == 0
    assert "No change" in fleet.apply(file)
    assert engine_pid(group(fleet)) == pid


def test_plan_says_what_would_change_and_exits_with_2(fleet):
    code, out, _ = fleet.run("plan", fleet.write("changed.yaml", fleet.spec().replace("16", "8")))
    assert code == 2
    assert "concurrency: 16 → 8" in out


def test_what_does_not_fit_exits_with_3_and_its_reasons(fleet):
    file = fleet.write("large.yaml", "name: large\nmodel: Qwen/Qwen3-235B-A22B-GPTQ-Int4\n")
    code, out, err = fleet.run("plan", file)
    assert code == 3
    assert "Qwen/Qwen3-235B-A22B-GPTQ-Int4" in out + err


def test_a_flag_that_the_engine_does_not_have_is_refused_before_anything_starts(fleet):
    code, out, _ = fleet.run(
        "apply", "--yes", fleet.write("wrong.yaml", TINY + "engine_args: [--max-num-seq-s=2]\n")
    )
    assert code == 3
    assert "vLLM 0.32.0+cpu has no flag --max-num-seq-s; the nearest is --max-num-seqs" in out


def test_a_wrong_file_names_its_line(fleet):
    file = fleet.write("wrong.yaml", "name: tiny\nmodl: builtin:tiny\n")
    code, _, err = fleet.run("apply", "--yes", file)
    assert code == 1
    assert "wrong.yaml:2" in err
    assert "model" in err


def test_without_a_terminal_and_without_yes_nothing_is_applied(fleet):
    code, _, err = fleet.run("apply", fleet.write("changed.yaml", fleet.spec().replace("16", "8")))
    assert code == 1
    assert "--yes" in err


def test_what_cannot_start_leaves_the_old_one_and_a_changed_file_replaces_it_and_no_request_fails(fleet):
    before, generation = group(fleet), fleet.deployment()["generation"]  # a group may be of an earlier one
    code, out, err = fleet.run(
        "apply",
        "--yes",
        fleet.write(
            "tiny.yaml", TINY + "engine_args: [--load-format=no-such-format]\n"
        ),  # real vLLM refuses it
    )
    assert code == 1
    assert "no-such-format" in out + err
    assert engine_pid(group(fleet)) == engine_pid(before)
    assert models(fleet)
    with Load(fleet) as load:
        out = fleet.apply(fleet.write("tiny.yaml", fleet.spec().replace("16", "8")))
        fleet.until(lambda: len(fleet.deployment()["groups"]) == 1)
    assert "concurrency" in out
    after = group(fleet)
    assert after["generation"] == generation + 2
    assert engine_pid(after) != engine_pid(before)
    assert set(load.statuses) == {200}


def test_an_edit_that_no_engine_sees_restarts_none_and_fails_no_request(fleet):
    engine, before = engine_pid(group(fleet)), fleet.deployment()["generation"]
    with Load(fleet) as load:
        out = fleet.apply(fleet.write("tiny.yaml", fleet.spec("keys: [default]\n")))
        assert "restarts no engine" in out
        assert fleet.deployment()["generation"] == before + 1
        out = fleet.ok("rollback", "--yes", "tiny")
        assert "restarts no engine" in out
        assert fleet.deployment()["generation"] == before + 2
    assert engine_pid(group(fleet)) == engine
    assert set(load.statuses) == {200}
    history = fleet.json("history", "tiny")["generations"]
    assert [one["fields"] for one in history[-2:]] == [["keys: – → default"], ["keys: default → –"]]
    assert [one["current"] for one in history[-2:]] == [False, True]


def test_a_variable_of_a_deployment_reaches_its_engine_and_no_file_and_no_answer(fleet):
    secret = "known-to-the-engine-alone"
    variable, spec = f"TEST_SECRET: {secret}", fleet.spec()
    with_it = (
        spec.replace("env: {", f"env: {{{variable}, ")
        if "env: {" in spec
        else spec + f"env: {{{variable}}}\n"
    )
    file = fleet.write("tiny.yaml", with_it)
    fleet.apply(file)
    fleet.until(lambda: len(fleet.deployment()["groups"]) == 1)
    pid = engine_pid(group(fleet))
    assert f"TEST_SECRET={secret}" in Path(f"/proc/{pid}/environ").read_text().split("\0")
    assert fleet.run("plan", file)[0] == 0, "a plan of the same file is no change"
    fleet.apply(file)
    assert engine_pid(group(fleet)) == pid
    answers = [
        fleet.ok(*words)
        for words in (("status", "--json"), ("describe", "tiny"), ("history", "tiny", "--json"))
    ]
    assert not [answer for answer in answers if secret in answer]
    found = subprocess.run(
        ["grep", "-rl", "--devices=skip", secret, str(fleet.paths.root), str(fleet.paths.run)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""


@pytest.mark.full
def test_another_replica_leaves_the_first_engine_alone_and_goes_again(fleet):
    engine = engine_pid(group(fleet))
    with Load(fleet) as load:
        fleet.ok("scale", "--yes", "tiny", "2")
        first, second = (engine_pid(one) for one in fleet.deployment()["groups"])
        assert engine in (first, second)
        assert first != second
        fleet.ok("scale", "--yes", "tiny", "1")
        fleet.until(lambda: len(fleet.deployment()["groups"]) == 1)
    assert engine_pid(group(fleet)) == engine
    assert set(load.statuses) == {200}


def test_a_restart_loads_the_engine_again_and_fails_no_request(fleet):
    engine = engine_pid(group(fleet))
    with Load(fleet) as load:
        fleet.ok("restart", "--yes", "tiny")
        fleet.until(lambda: len(fleet.deployment()["groups"]) == 1)
    assert engine_pid(group(fleet)) != engine
    assert set(load.statuses) == {200}
    assert "applied by" in fleet.ok("events", "tiny")


def test_kill_the_controller_and_no_request_fails(fleet):
    """Its state comes back from the store, its table from the groups; nobody else notices.

    Ray Serve may take seconds to list what runs: groups have reported by then.
    """
    (controller,), (serve,) = actors(fleet, "ControllerActor"), actors(fleet, "ServeController")
    with Load(fleet) as load:
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


def actors(fleet, name):
    """Process ids of a kind of actor of this fleet."""
    return [p.pid for p in processes.labelled({LABEL: fleet.paths.label}) if f"ray::{name}" in p.command]


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
def test_another_address_of_the_endpoint_is_taken_at_once_and_open_streams_go_on(fleet):
    slow = fleet.spec().replace("name: tiny", "name: slow").replace("env: {", "env: {FAKE_ITL_MS: '100', ")
    fleet.apply(fleet.write("slow.yaml", slow))
    inventory = (fleet.directory / "inventory.yaml").read_text()
    pids, old = {engine_pid(group(fleet, name)) for name in ("tiny", "slow")}, fleet.endpoint
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken, free_port() as free:
            port = free.getsockname()[1]
            free.close()
            fleet.write("inventory.yaml", inventory.replace("port: 0", f"port: {taken.getsockname()[1]}"))
            code, _, err = fleet.run("up")
            assert code == 1
            assert "is used by another program" in err
            assert models(fleet)
            fleet.write("inventory.yaml", inventory.replace("port: 0", f"port: {port}"))
            code, out, _ = fleet.run("plan", str(fleet.directory / "tiny.yaml"))
            assert code == 2
            assert f"→ {port}; at once" in out
            with openai.OpenAI(base_url=old, api_key=fleet.key, max_retries=0) as client:
                stream = client.completions.create(model="slow", prompt="Hello", max_tokens=64, stream=True)
                next(iter(stream))
                out = fleet.apply(str(fleet.directory / "tiny.yaml"))
                assert fleet.endpoint == f"http://127.0.0.1:{port}/v1"
                assert models(fleet)
                assert [chunk.choices[0].finish_reason for chunk in stream][-1] is not None
                with pytest.raises(openai.APIConnectionError):
                    client.models.list()
        assert "No change" in fleet.ok("apply", "--yes", str(fleet.directory / "tiny.yaml"))
        assert fleet.json("status")["endpoint"] == fleet.endpoint
        assert {engine_pid(group(fleet, name)) for name in ("tiny", "slow")} == pids
    finally:
        fleet.write("inventory.yaml", inventory)


@pytest.mark.full
def test_another_address_outlives_the_gateway_and_the_controller(fleet):
    inventory = (fleet.directory / "inventory.yaml").read_text()
    pid = engine_pid(group(fleet))
    try:
        with free_port() as free:
            port = free.getsockname()[1]
        fleet.write("inventory.yaml", inventory.replace("port: 0", f"port: {port}"))
        fleet.ok("up")
        fleet.endpoint = fleet.json("status")["endpoint"]
        assert fleet.endpoint == f"http://127.0.0.1:{port}/v1"
        (gateway,) = actors(fleet, "ServeReplica:gateway")
        os.kill(gateway, signal.SIGKILL)
        fleet.until(lambda: answers_at(fleet.endpoint), timeout=60)
        (controller,) = actors(fleet, "ControllerActor")
        os.kill(controller, signal.SIGKILL)
        fleet.until(lambda: fleet.run("status", "--json")[0] == 0, timeout=60)
        assert fleet.json("status")["endpoint"] == fleet.endpoint
        fleet.until(lambda: fleet.deployment("tiny")["groups"], timeout=30)
        assert engine_pid(group(fleet)) == pid
    finally:
        fleet.write("inventory.yaml", inventory)


def test_a_report_has_what_a_reader_needs_and_no_secret(fleet):
    file = fleet.directory / "report.tar.gz"
    file.unlink(missing_ok=True)
    out = fleet.ok("bundle", "--yes", "-o", str(file))
    assert f"{file}: " in out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        content = {one.name: archive.extractfile(one).read().decode() for one in archive.getmembers()}
    names = {name.partition("/")[2] for name in content}
    assert {
        "README.txt",
        "versions.json",
        "status.json",
        "doctor.json",
        "plans/tiny.txt",
        "events.txt",
    } <= names
    assert any(name.startswith("nodes/this/logs/test-") for name in names)
    facts = json.loads(content["sparkfleet-report/nodes/this/facts.json"])
    assert {"memory", "kernel", "disks", "sockets"} <= {one["field"] for one in facts}
    memory = next(one for one in facts if one["field"] == "memory")
    assert "MemAvailable" in memory["stdout"]
    assert memory["not_understood"] == ""
    secrets = [
        path.read_text().strip()
        for path in (fleet.paths.api_token, fleet.paths.engine_secret, fleet.paths.ray_token)
    ]
    for secret in (*secrets, fleet.key):
        assert [name for name, text in content.items() if secret in text] == []
    code, _, err = fleet.run("bundle", "--yes", "-o", str(file))
    assert code == 1
    assert "exists already" in err


def free_port():
    return socket.create_server(("127.0.0.1", 0))


def answers_at(endpoint):
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{endpoint.removesuffix('/v1')}/healthz", timeout=5).status_code == 200


def is_down(fleet):
    """True if `status` reports it down and without deployments, under the fields of a fleet that is up."""
    status = fleet.json("status")
    return (status["up"], status["deployments"]) == (False, [])


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


def test_delete_leaves_no_process_and_no_port_and_ctrl_c_stops_the_watching_not_the_work(fleet):
    url = group(fleet)["url"]
    fleet.ok("delete", "--yes", "tiny")
    assert fleet.ranks() == []
    assert fleet.deployments() == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0
    code, _, err = fleet.run("delete", "--yes", "tiny")
    assert code == 1
    assert "tiny" in err
    with fleet.popen("apply", "--yes", fleet.write("tiny.yaml", fleet.spec())) as process:
        fleet.until(fleet.deployment)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    fleet.until(lambda: ready(fleet))


@pytest.mark.full
def test_down_leaves_nothing_and_up_brings_back_what_was_served(fleet):
    metrics = int(fleet.paths.metrics_port.read_text())
    assert "sparkfleet_" in httpx.get(f"http://127.0.0.1:{metrics}/metrics").text
    _, out, _ = fleet.run("down")
    assert " is down.\n" in out
    assert "`sparkfleet up` starts it again with tiny (generation " in out
    assert fleet.everything() == []
    port = int(json.loads(fleet.paths.address.read_text())["gateway_port"])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert is_down(fleet)
    fleet.ok("up")
    fleet.until(lambda: ready(fleet))
    with openai.OpenAI(base_url=fleet.endpoint, api_key=fleet.key) as client:
        answer = client.completions.create(model="tiny", prompt="Hello", max_tokens=2)
    assert answer.choices[0].text
    assert "sparkfleet_" in httpx.get(f"http://127.0.0.1:{metrics}/metrics").text, "at the same port"

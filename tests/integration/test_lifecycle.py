"""The life of a deployment."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import tarfile
from pathlib import Path

import httpx
import openai
import pytest
from live_fleet import TINY
from served_tiny import Load, actors, engine_pid, group, is_down, models, ready, serve_tiny

pytestmark = [pytest.mark.integration, pytest.mark.any_engine]


@pytest.fixture(autouse=True)
def _serving(fleet):
    """Each test begins with `tiny` serving and nothing else, whatever the one before it did."""
    serve_tiny(fleet)


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

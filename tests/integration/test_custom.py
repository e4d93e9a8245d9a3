"""Custom workloads on simulated Sparks: any command that declares its memory, its port and its health."""

import json
import sys
import time

import pytest
from lab_fleet import CHECKOUT
from pair_fleet import events_of

from sparkfleet.controlplane.policy.fallback import BREAKER_FAILURES
from sparkfleet.group.crash_pause import pause_s
from sparkfleet.specs.timeouts import Timeouts

pytestmark = [pytest.mark.integration, pytest.mark.any_engine]

SERVER = CHECKOUT / "tests/integration/stand_ins/speech.py"
SPARK_MIB = 109866
"""Memory that the lab's idle Spark has available."""


@pytest.fixture
def fleet(pair):
    """Two Sparks that serve nothing, the first with a Spark's memory."""
    for name in [deployment["name"] for deployment in pair.deployments()]:
        pair.ok("delete", "--yes", name)
    pair.lab.set("spark1", {"meminfo": "spark"})
    yield pair
    pair.lab.heal("spark1")


def custom(name, port):
    command = json.dumps([sys.executable, str(SERVER), "127.0.0.1", str(port)])
    return (
        f"name: {name}\nmodel: speech/{name}\nengine: custom\ncommand: {command}\nport: {port}\nmemory: 20 GiB\n"
        "nodes: [spark1]\n"
    )


def running(fleet, port):
    """Processes on the node of a workload that has this port."""
    return [line for line in fleet.processes("spark1") if line.endswith(f"{SERVER} 127.0.0.1 {port}")]


@pytest.mark.full
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
    assert "spark1 has only 2.5 GiB of memory left: the group was stopped" in fleet.ok("describe", "newer")


@pytest.mark.full
def test_an_edit_ends_the_old_one_first_as_both_have_its_port(fleet):
    """The old one answered the health checks of the new one, which was ready at once, and then it was ended."""
    fleet.apply(custom("edited", 5021), "edited.yaml")
    before = fleet.group("edited")
    fleet.apply(custom("edited", 5021) + "env: {MARK: new}\n", "edited.yaml")
    after = fleet.group("edited")
    assert (before["generation"], after["generation"]) == (1, 2)
    assert after["ranks"][0]["pid"] != before["ranks"][0]["pid"]
    assert len(running(fleet, 5021)) == 1
    assert "it and g2/0 listen on the same port, 5021" in fleet.ok("events", "edited")


@pytest.mark.full
def test_memory_that_goes_slowly_ends_a_group_at_the_floor_and_it_comes_back(fleet):
    fleet.apply(custom("grows", 5011), "grows.yaml")
    before = fleet.group("grows")["ranks"][0]["pid"]
    for left_mib in (16384, 8192, 5120, 3584):
        fleet.lab.set("spark1", {"holder_mib": str(SPARK_MIB - left_mib)})
        time.sleep(3)
        assert fleet.group("grows")["ranks"][0]["pid"] == before, f"{left_mib} MiB are above the floor"
    fleet.lab.set("spark1", {"holder_mib": str(SPARK_MIB - 2560)})
    fleet.until(lambda: not fleet.is_ready("grows"), timeout=15)
    fleet.until(lambda: running(fleet, 5011) == [], timeout=15)
    fleet.lab.set("spark1", {"holder_mib": "0"})
    fleet.until(lambda: fleet.is_ready("grows"), timeout=120)
    assert "spark1 has only 2.5 GiB of memory left: the group was stopped" in fleet.ok("describe", "grows")


@pytest.mark.full
def test_one_that_hangs_is_started_anew_where_its_deployment_says_how_that_is_seen(fleet):
    fleet.apply(custom("speech", 5007) + "health: /health\n", "speech.yaml")
    before = fleet.group("speech")["ranks"][0]["pid"]
    fleet.lab.exec("spark1", ["kill", "-STOP", str(before)])
    unwell_s = Timeouts(**fleet.timeouts).unwell_s
    time.sleep(unwell_s / 2)
    assert fleet.is_ready("speech"), "it may have much to do"
    fleet.until(lambda: not fleet.is_ready("speech"), timeout=unwell_s + 30)
    fleet.until(lambda: fleet.is_ready("speech"), timeout=120)
    assert fleet.group("speech")["ranks"][0]["pid"] != before
    assert "is not healthy: /health did not return 200" in fleet.ok("describe", "speech")


@pytest.mark.full
def test_one_that_falls_is_not_started_again_before_its_memory_is_back(fleet):
    fleet.apply(custom("late", 5008), "late.yaml")
    assert running(fleet, 5008)
    before = fleet.group("late")["ranks"][0]["pid"]
    fleet.lab.set("spark1", {"holder_mib": str(SPARK_MIB - 10240)})  # 10 GiB left: half of what it needs
    fleet.lab.exec("spark1", ["kill", "-9", str(before)])
    fleet.until(lambda: "waiting for memory" in fleet.group("late")["detail"], timeout=60)
    time.sleep(5)
    assert "waiting for memory: spark1 has 10.0 GiB" in fleet.ok("describe", "late")
    assert running(fleet, 5008) == []
    fleet.lab.set("spark1", {"holder_mib": "0"})
    fleet.until(lambda: fleet.is_ready("late"), timeout=120)
    assert fleet.group("late")["ranks"][0]["pid"] != before


@pytest.mark.full
def test_one_that_was_given_up_for_memory_starts_once_it_is_free(fleet):
    memory_s = Timeouts(**fleet.timeouts).memory_s
    fleet.apply(custom("refused", 5012), "refused.yaml")
    pid = fleet.group("refused")["ranks"][0]["pid"]
    fleet.lab.set("spark1", {"holder_mib": str(SPARK_MIB - 10240)})  # 10 GiB left: half of what it needs
    fleet.lab.exec("spark1", ["kill", "-9", str(pid)])
    fleet.until(lambda: fleet.deployment("refused")["state"] == "failed", timeout=5 * memory_s + 120)
    assert running(fleet, 5012) == []
    fleet.lab.set("spark1", {"holder_mib": "0"})
    fleet.until(lambda: fleet.is_ready("refused"), timeout=120)
    assert "is free again: it starts once more" in fleet.ok("events", "refused")


@pytest.mark.full
def test_one_that_falls_again_and_again_is_stopped_until_it_is_applied_again(fleet):
    text, killed = custom("frail", 5009), set()
    fleet.apply(text, "frail.yaml")
    for _ in range(BREAKER_FAILURES):
        group = fleet.until(
            lambda: (now := fleet.ready_group("frail")) and now["ranks"][0]["pid"] not in killed and now,
            timeout=120,
        )
        killed.add(group["ranks"][0]["pid"])
        fleet.lab.exec("spark1", ["kill", "-9", str(group["ranks"][0]["pid"])])
    fleet.until(lambda: fleet.deployment("frail")["state"] == "failed", timeout=60)
    time.sleep(
        pause_s(BREAKER_FAILURES, Timeouts(**fleet.timeouts)) + 5
    )  # when it would have been started the next time
    assert running(fleet, 5009) == []
    said = " ".join(fleet.ok("describe", "frail").split())
    assert (
        f"it came up and failed {BREAKER_FAILURES} times within 10 minutes, so it is not started again"
        in said
    )
    fleet.apply(text, "frail.yaml")
    assert running(fleet, 5009)
    assert 5009 in fleet.listening("spark1")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "port", "address", "place"),
    [("astray", 5010, "127.0.0.9", "127.0.0.9"), ("exposed", 5013, "0.0.0.0", "*")],
)
def test_one_that_listens_on_the_wrong_address_or_on_every_one_is_named_within_a_minute(
    fleet, name, port, address, place
):
    text = custom(name, port).replace('"127.0.0.1"', f'"{address}"') + "health: /health\n"
    code, out, err = fleet.run("apply", "--yes", fleet.write(f"{name}.yaml", text))
    assert code != 0, out
    assert not fleet.is_ready(name)
    _, events = events_of(fleet, name)
    began = next(event["at"] for event in events if event["kind"] == "starting")
    named = [
        event
        for event in events
        if f"istens on {place}:{port}" in event["message"]
        and f"its requests arrive at 127.0.0.1:{port}" in event["message"]
    ]
    assert named, f"{out}\n{err}"
    assert named[0]["at"] - began < 60


@pytest.mark.full
def test_one_that_requires_a_key_of_its_own_is_named_by_status(fleet):
    """Each of its requests was a 503 that promised another engine, and `status` had it as ready without a word."""
    fleet.apply(custom("locked", 5022), "locked.yaml")

    def named():
        code, out, err = fleet.run("ask", "locked", "Hello")
        assert code != 0, out
        assert "failed before it answered" in err
        return "locked/g1/0 counts as ready, and requests fail there: it answered 401" in fleet.ok("status")

    fleet.until(named, timeout=60)
    assert fleet.is_ready("locked")
    fleet.ok("delete", "--yes", "locked")
    fleet.until(lambda: "locked" not in fleet.ok("status"), timeout=15)


@pytest.mark.full
def test_an_embedding_model_is_served_by_vllm_with_the_weights_that_were_copied(fleet):
    """deployments/qwen3-embedding.yaml as a process on the CPU. No other machine has the model: its node makes it."""
    serve = (
        f'exec {sys.executable} -m vllm.entrypoints.openai.api_server --model "$SPARKFLEET_MODEL_PATH"'
        ' --served-model-name "$SPARKFLEET_MODEL_NAME" --host "$SPARKFLEET_HOST" --port "$SPARKFLEET_PORT"'
        " --runner pooling --max-model-len 512 --dtype float32 --enforce-eager --kv-cache-memory-bytes 67108864"
        " --gpu-memory-utilization 0.1"
    )
    fleet.apply(
        "name: vectors\nmodel: builtin:tiny\nengine: custom\nstage_model: true\nport: 5013\nhealth: /health\n"
        f"command: {json.dumps(['sh', '-c', serve])}\nmemory: 4 GiB\nnodes: [spark1]\n"
        "endpoints: [/v1/rerank, /v1/score]\n",
        "vectors.yaml",
    )
    texts = ["a rail carries packets", "two Sparks and a cable"]
    answer = fleet.ask("/embeddings", {"model": "vectors", "input": texts})
    one, other = (found["embedding"] for found in answer["data"])
    assert sum(value * value for value in one) == pytest.approx(1.0, abs=1e-3)
    assert one != other
    ranked = fleet.ask("/rerank", {"model": "vectors", "query": texts[1], "documents": texts})
    assert [found["index"] for found in ranked["results"]] == [1, 0]
    counted = fleet.until(
        lambda: [
            one for one in json.loads(fleet.ok("usage", "--json"))["usage"] if one["model"] == "vectors"
        ],
        timeout=60,
    )
    assert [one["requests"] for one in counted] == [2]
    assert counted[0]["input"] > len(texts)

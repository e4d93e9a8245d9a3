import json
import subprocess
import sys

import pytest

from sparkfleet.engines.registry import engine_by_name
from sparkfleet.errors import EngineError

SGLANG = engine_by_name("sglang")
MODEL = "Qwen/Qwen3.6-27B-FP8"


@pytest.fixture
def launch(candidate, context):
    def launch(rank=0, *, where=None, **fields):
        told = {"engine": "sglang", "runtime": "container", "image": "i@sha256:0", "engine_version": "0.5.12"}
        one = candidate(**{**told, **fields})
        return SGLANG.launch(one, context(rank, one.shape.ranks, **(where or {})))

    return launch


def test_the_command_of_field_report_000(launch):
    """Flag for flag, with --tp by its full name; what the planner adds is below."""
    beam = {"method": "nextn", "tokens": 5, "topk": 4}
    argv = launch(model=MODEL, memory_fraction=0.82, engine_args=("--trust-remote-code",), **beam).argv
    assert argv[0] == "python3"
    assert argv[3:] == (
        "--model-path", "/models/m",
        "--served-model-name", "m",
        "--host", "127.0.0.1", "--port", "4321",
        "--context-length", "4096",
        "--max-running-requests", "4",
        "--dtype", "auto",
        "--enable-metrics",
        "--sleep-on-idle",
        "--mem-fraction-static", "0.82",
        "--speculative-algorithm", "NEXTN",
        "--speculative-num-steps", "5",
        "--speculative-eagle-topk", "4",
        "--reasoning-parser", "qwen3",
        "--tool-call-parser", "qwen3_coder",
        "--tp-size", "1",
        "--trust-remote-code",
    )  # fmt: skip


DRAFT = {"draft": "o/d", "where": {"draft_path": "/models/d"}}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"method": "nextn", "tokens": 5, "topk": 4, "beam_tokens": 20},
         "EAGLE num-steps=5 eagle-topk=4 num-draft-tokens=20"),
        ({"method": "nextn", "tokens": 5, "topk": 4, "engine_version": "0.5.12 re-tag"},
         "NEXTN num-steps=5 eagle-topk=4"),
        ({"method": "nextn", "tokens": 5, "topk": 4, "engine_version": "0.5.12.post1"},
         "NEXTN num-steps=5 eagle-topk=4 num-draft-tokens=20"),
        ({"method": "nextn", "tokens": 5, "topk": 4, "engine_version": "0.5.23"},
         "NEXTN num-steps=5 eagle-topk=4 num-draft-tokens=20"),
        ({"method": "nextn", "tokens": 5, "topk": 4, "engine_version": ""},
         "NEXTN num-steps=5 eagle-topk=4 num-draft-tokens=20"),
        ({"method": "nextn", "tokens": 3}, "NEXTN num-steps=3 eagle-topk=1 num-draft-tokens=4"),
        ({"method": "mtp", "tokens": 3}, "NEXTN num-steps=3 eagle-topk=1 num-draft-tokens=4"),
        ({"method": "ngram", "tokens": 4}, "NGRAM num-draft-tokens=5"),
        ({"method": "eagle3", "tokens": 3, **DRAFT},
         "EAGLE3 draft-model-path=/models/d num-steps=3 eagle-topk=1 num-draft-tokens=4"),
        ({"method": "dflash", "tokens": 7, **DRAFT}, "DFLASH draft-model-path=/models/d num-draft-tokens=8"),
        ({"method": "dflash2", "tokens": 7, "engine_version": "0.5.19", **DRAFT},
         "DFLASH draft-model-path=/models/d num-draft-tokens=8"),
        ({"method": "dspark", "tokens": 7, "engine_version": "0.5.16", **DRAFT},
         "DSPARK draft-model-path=/models/d dspark-block-size=7"),
        ({"method": "dspark", "tokens": 5, "engine_version": "0.5.23"}, "DSPARK dspark-block-size=5"),
        ({"method": "dflash2", "tokens": 7, "busy": 5, "busy_from": 2, "engine_version": "0.5.23", **DRAFT},
         "DFLASH draft-model-path=/models/d num-draft-tokens=8"),
        ({"method": "nextn", "tokens": 4, "busy": 2, "busy_from": 3, "engine_version": "0.5.13"},
         "NEXTN num-steps=4 eagle-topk=1 num-draft-tokens=5 adaptive="
         " adaptive-config=/run/sparkfleet/adaptive.json"),
        ({"method": "nextn", "tokens": 4, "busy": 2, "busy_from": 3},
         "NEXTN num-steps=4 eagle-topk=1 num-draft-tokens=5"),
        ({"method": "draft", "tokens": 4, "draft": "o/d"},
         "STANDALONE draft-model-path=o/d num-steps=4 eagle-topk=1 num-draft-tokens=5"),
    ],
)  # fmt: skip
def test_every_method_of_speculation(launch, flags, fields, told):
    found = flags(launch(**fields).argv[3:])
    algorithm, *rest = told.split()
    assert found.pop("--speculative-algorithm") == algorithm
    mine = [f"{name}={value}" for name, value in found.items() if name.startswith("--speculative")]
    assert mine == [f"--speculative-{one}" for one in rest]


def test_the_depth_by_load_is_in_a_file_beside_the_rank(launch, flags):
    """One candidate per range of batches: the plan's number, not one that SGLang tries out."""
    chain = {"method": "nextn", "tokens": 4, "beam_tokens": 5, "busy": 2, "busy_from": 3}
    contained = launch(engine_version="0.5.23", **chain)
    process = launch(engine_version="0.5.23", runtime="process", **chain)
    _guard, steps = contained.files
    assert json.loads(steps.text) == {"1": {"candidate_steps": [4]}, "3": {"candidate_steps": [2]}}
    assert [file.name for file in process.files] == ["sparkfleet_guard.py", "rendezvous", "adaptive.json"]
    assert flags(process.argv[3:])["--speculative-adaptive-config"] == "/state/r/adaptive.json"


def test_a_method_that_it_has_not_is_refused(launch):
    with pytest.raises(EngineError, match=r'"dspark": it came with 0\.5\.16'):
        launch(method="dspark", tokens=7, engine_version="0.5.12", **DRAFT)


def test_memory_is_the_plans_in_sglangs_words(launch, flags):
    found = flags(launch(kv_dtype="fp8", batch_tokens=2048).argv[3:])
    assert (found["--kv-cache-dtype"], found["--chunked-prefill-size"]) == ("fp8_e4m3", "2048")


def test_nvidias_nvfp4_is_named(launch, flags):
    named = launch(model="nvidia/Qwen3.5-397B-A17B-NVFP4", quant="nvfp4").argv[3:]
    assert flags(named)["--quantization"] == "modelopt_fp4"
    assert "--quantization" not in launch(model="bjk110/SPARK-NVFP4", quant="nvfp4").argv


_SHOWS = """
import sys, uvicorn
if __name__ == '__main__':
    print(sys.argv[1:])
    config = uvicorn.Config(lambda scope: None)
    config.load()
    print(type(config.loaded_app).__name__)
"""


def test_the_token_comes_from_the_environment_and_reaches_the_servers_arguments(launch, tmp_path):
    one = launch(runtime="process", where={"files_dir": str(tmp_path)})
    (tmp_path / "sparkfleet_guard.py").write_text(one.files[0].text)
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(_SHOWS)
    done = subprocess.run(
        [sys.executable, *one.argv[1:3], "--port", "1"],
        env={one.token_env: "secret", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == ["['--port', '1', '--api-key', 'secret']", "Guard"]
    assert "secret" not in " ".join(one.argv)


def test_two_ranks_differ_in_their_rank_and_address_only(launch, flags):
    spec = {"method": "nextn", "tokens": 3, "nodes": 2, "ep": 2}
    first, second = (flags(launch(rank, **spec).argv[3:]) for rank in (0, 1))
    assert {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)} == {
        "--node-rank", "--host"
    }  # fmt: skip
    assert (first["--tp-size"], first["--ep-size"], first["--nnodes"]) == ("2", "2", "2")
    assert first["--dist-init-addr"] == "192.168.100.11:29500"


def test_two_ranks_advertise_their_own_addresses_and_one_serves(launch):
    first, second = (launch(rank, nodes=2) for rank in (0, 1))
    assert dict(second.env)["SGLANG_HOST_IP"] == "192.168.100.12"
    assert dict(second.env)["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"
    assert (first.serves, second.serves) == (True, False)


MEETS = "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"


def test_one_rank_meets_itself_in_a_file_and_opens_no_port_for_it(launch):
    """The variable is in 0.5.12 (environ.py:285) and 0.5.23 (distributed/bootstrap.py:238); older ones do not read it."""
    contained, process = launch(), launch(runtime="process")
    assert dict(contained.env)[MEETS] == "file:///tmp/rendezvous"
    assert [file.name for file in contained.files] == ["sparkfleet_guard.py"], (
        "a container's own: its mounts are read-only, and it goes with it"
    )
    directory = dict(process.env)[MEETS].removeprefix("file://").removesuffix("/rendezvous")
    assert directory.startswith("/")
    assert [(file.name, file.text) for file in process.files[1:]] == [("rendezvous", "")]
    assert MEETS not in dict(launch(nodes=2).env), "two nodes share no file"


def test_a_deployment_may_meet_elsewhere(launch):
    env = launch(env=((MEETS, "env://"),)).env
    assert [value for name, value in env if name == MEETS] == ["env://"]


def test_an_ipv6_meeting_place_is_in_brackets(launch, flags):
    found = flags(launch(nodes=2, where={"leader": "fd00::1"}).argv[3:])
    assert found["--dist-init-addr"] == "[fd00::1]:29500"


def test_on_cpus(launch, flags):
    one = launch(1, nodes=2, device="cpu", runtime="process", context=512)
    found = flags(one.argv[3:])
    assert one.argv[0] == "/venv/bin/python"
    assert (found["--device"], found["--max-total-tokens"], found["--mem-fraction-static"]) == (
        "cpu",
        "8192",
        "0.1",
    )
    assert {"--disable-overlap-schedule", "--sleep-on-idle"} <= found.keys()
    assert dict(one.env)["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"
    assert not any(name.startswith("NCCL") for name, _ in one.env)


def test_speculation_on_cpus_is_refused(launch):
    with pytest.raises(EngineError, match="cannot speculate"):
        launch(device="cpu", method="ngram", tokens=4)


@pytest.mark.parametrize(
    ("version", "domains", "given"),
    [
        ("0.5.23", (), "none.invalid"),
        ("0.5.23", ("a.example", "b.example"), "a.example b.example"),
        ("0.5.12", (), None),  # it has no such option: the gateway alone refuses
        ("", (), None),
    ],
)
def test_media_come_from_the_allowed_hosts_only(launch, flags, version, domains, given):
    found = flags(launch(engine_version=version, media_domains=domains).argv[3:])
    assert found.get("--allowed-media-domains") == given


def test_ranks_start_with_unequal_free_memory(launch):
    name = "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"
    assert dict(launch(1, nodes=2, memory_fraction=0.5).env)[name] == "0"
    assert name not in dict(launch(memory_fraction=0.5).env)
    assert dict(launch(nodes=2, env=((name, "1"),)).env)[name] == "1", "the deployment's own counts"


def test_a_replica_on_a_larger_node_takes_less_of_it(launch):
    argv = launch(memory_fraction=0.6, memory_fractions=(0.3,)).argv
    assert argv[argv.index("--mem-fraction-static") + 1] == "0.3"

"""Output of `sparkfleet apply --dry-run`. The files in `dry_run/` have memory fractions masked: they change whenever the
memory model is fitted again.

`SPARKFLEET_GOLDEN=write pytest tests/cli/planning/test_dry_run.py` writes the files; read them before you commit them.
"""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "dry_run"
EXAMPLES = [
    "gpt-oss-120b-eagle3", "gpt-oss-120b-kv-disk", "llama-3.3-70b-draft", "minimax-m2.7-two-sparks", "orpheus-tts",
    "qwen235b-tp2",
    "qwen3-235b-eagle3-two-sparks", "qwen3-30b-a3b", "qwen3-embedding", "qwen3.5-122b-nvfp4", "qwen3.5-397b-two-sparks",
    "qwen3.6-27b-both", "qwen3.6-27b-fp8-nextn", "qwen3.6-27b-fp8-ngram", "qwen3.6-27b-nvfp4-mtp",
    "qwen3.6-35b-a3b-dflash-k3", "qwen3.6-35b-a3b-fp8-vision", "qwen3.6-35b-a3b-int4-vision", "qwen3.6-35b-a3b-mtp-k3",
]  # fmt: skip
DONE, ERROR, INFEASIBLE = 0, 1, 3


@pytest.fixture
def dry_run(sparkfleet, two_sparks):
    def dry_run(file, inventory=two_sparks, assumed="dgx-spark", *more):
        return sparkfleet("apply", file, "--dry-run", "--assume", assumed, "-i", inventory, *more)

    return dry_run


@pytest.fixture
def written(deployments, tmp_path):
    """An example with lines added to it."""

    def written(name, *lines):
        file = tmp_path / f"{name}.yaml"
        file.write_text("\n".join([(deployments / file.name).read_text(), *lines]))
        return file

    return written


def commands(out):
    """The commands that were printed, as a shell reads them."""
    text = "\n".join(line for line in out.splitlines() if not line.startswith("#"))
    return [shlex.split(one) for one in text.replace("\\\n", " ").splitlines() if one.strip()]


def masked(text):
    return re.sub(r"(--gpu-memory-utilization|--mem-fraction-static) 0\.\d+", r"\1 #", text)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_system_of_the_field_reports(dry_run, deployments, name):
    code, out, err = dry_run(deployments / f"{name}.yaml")
    assert (code, err) == (DONE, "")
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("SPARKFLEET_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(masked(out))
    assert masked(out) == path.read_text(), (
        "if the change has a reason: SPARKFLEET_GOLDEN=write pytest tests/cli/planning/test_dry_run.py"
    )


INSTALLS = re.compile(
    r"\b(apt|apt-get|dnf|yum|apk|pip3?|conda|npm|cargo|curl|wget) +(-\S+ +)*(install|update|add|http\S*)"
)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_no_command_and_no_file_of_a_rank_installs_anything(path):
    """The files are what `apply --dry-run` prints, scripts included: see the test above."""
    assert not INSTALLS.findall(path.read_text())


def test_the_search_finds_what_a_script_once_did():
    assert INSTALLS.findall("apt-get update && apt-get install -y openssh-server")
    assert INSTALLS.findall("pip install -q flashinfer")


def test_field_report_004_flag_for_flag_on_both_nodes(dry_run, deployments):
    _, out, _ = dry_run(deployments / "qwen235b-tp2.yaml")
    first, second = commands(out)
    for command in (first, second):
        assert {
            "--attention-backend=TRITON_ATTN", "--kv-cache-dtype=fp8", "--gpu-memory-utilization=0.87",
            "--enable-expert-parallel",
        } <= set(command)  # fmt: skip
        assert command[command.index("--tensor-parallel-size") + 1] == "2"
        assert command[command.index("--quantization") + 1] == "gptq_marlin"
        assert "nvcr.io/nvidia/vllm:26.04-py3" in command
        assert {"--gpu-memory-utilization", "--kv-cache-dtype"}.isdisjoint(command), "each is given once"
        assert "NCCL_IB_HCA==rocep1s0f1,roceP2p1s0f1" in command
    assert "VLLM_HOST_IP=192.168.100.10" in first
    assert "VLLM_HOST_IP=192.168.100.11" in second
    assert ("--headless" in first, "--headless" in second) == (False, True)


def test_field_report_000_flag_for_flag(dry_run, deployments):
    (command,) = commands(dry_run(deployments / "qwen3.6-27b-fp8-nextn.yaml")[1])
    for pair in (
        ("--shm-size", "16g"), ("--network", "host"), ("--gpus", "all"), ("--served-model-name", "qwen3.6-27b"),
        ("--tp-size", "1"), ("--speculative-algorithm", "NEXTN"), ("--speculative-num-steps", "5"),
        ("--speculative-eagle-topk", "4"),
    ):  # fmt: skip
        assert command[command.index(pair[0]) + 1] == pair[1]
    assert command[-1] == "--mem-fraction-static=0.82"
    assert "--trust-remote-code" not in command, "the checkpoint brings no code, and its commit is not pinned"
    assert "--speculative-num-draft-tokens" not in command


def test_secrets_of_a_deployment_are_named_and_not_shown(dry_run, written):
    _, out, _ = dry_run(written("qwen3-30b-a3b", "env: {HF_TOKEN: hf_secret}"))
    assert "hf_secret" not in out
    assert "--env HF_TOKEN \\" in out


def test_a_process_is_shown_with_its_environment(dry_run, deployments, tmp_path):
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("fleet: f\nhead: here\nnodes: {here: {address: local}}\n")
    facts = tmp_path / "facts.yaml"
    facts.write_text(
        "here: {gpu: null, memory_total_gb: 32, memory_available_gb: 20,"
        " engines: {vllm: {python: /venv/bin/python, version: 0.32.0+cpu}}}"
    )
    file = tmp_path / "tiny.yaml"
    file.write_text(
        (deployments / "tiny-local.yaml").read_text() + "env: {HF_TOKEN: hf_secret}\n", encoding="utf-8"
    )
    code, out, err = dry_run(file, inventory, facts)
    assert (code, err) == (DONE, "")
    (command,) = commands(out)
    assert command[0] == "env"
    assert {"HF_HUB_OFFLINE=1", "HF_TOKEN=***", "VLLM_API_KEY=***"} <= set(command)
    assert command[command.index("/venv/bin/python") + 1 :][:2] == [
        "-m",
        "vllm.entrypoints.openai.api_server",
    ]
    assert "hf_secret" not in out
    _, out, _ = dry_run(file, inventory, facts, "--json")
    (rank,) = json.loads(out)["deployments"][0]["groups"][0]["ranks"]
    assert [*(f"{name}={value}" for name, value in rank["env"].items()), *rank["argv"]] == command[1:]
    assert "hf_secret" not in out


def test_json_for_programs(dry_run, deployments, two_sparks):
    file = deployments / "qwen235b-tp2.yaml"
    code, out, err = dry_run(file, two_sparks, "dgx-spark", "--json")
    body = json.loads(out)
    assert (code, err, body["version"], body["refused"]) == (DONE, "", 1, [])
    assert body["assumed"] == ["spark1", "spark2"]
    (deployment,) = body["deployments"]
    (group,) = deployment["groups"]
    assert (deployment["name"], group["group"]) == ("qwen3-235b", 0)
    assert [(rank["rank"], rank["node"]) for rank in group["ranks"]] == [(0, "spark1"), (1, "spark2")]
    assert [rank["argv"] for rank in group["ranks"]] == commands(dry_run(file)[1])
    assert group["runs"].startswith("spark1+spark2 · TP=2 EP=2")
    assert group["image"] in group["ranks"][0]["argv"]


def test_json_of_what_is_refused(dry_run, deployments, two_sparks):
    code, out, _ = dry_run(deployments / "nemotron-3-super-open.yaml", two_sparks, "dgx-spark", "--json")
    body = json.loads(out)
    assert (code, body["deployments"]) == (INFEASIBLE, [])
    assert body["refused"][0]["rejected"][0]["rule"] == "license-nvidia-open-model"


def test_two_ranks_on_cpus_are_shown_with_their_files(dry_run, two_sparks, tmp_path):
    home = "{gpu: null, engines: {vllm: {python: /venv/bin/python, version: 0.32.0+cpu}}}"
    facts, file = tmp_path / "facts.yaml", tmp_path / "m.yaml"
    facts.write_text(f"spark1: {home}\nspark2: {home}\n")
    file.write_text("name: m\nmodel: builtin:tiny-moe\nparallel: {tp: 2, ep: 2}\n")
    code, out, err = dry_run(file, two_sparks, facts)
    assert (code, err) == (DONE, "")
    first, second = commands(out)
    assert "GLOO_SOCKET_IFNAME=enp1s0f1np1" in first
    assert ("--headless" in first, "--headless" in second) == (False, True)
    assert out.count("vllm-0.32.0+cpu.dist-info/METADATA") == 2
    assert "#   Name: vllm" in out


def test_what_is_refused_is_told_as_plan_tells_it(dry_run, sparkfleet, deployments, two_sparks):
    file = deployments / "nemotron-3-super-open.yaml"
    code, out, _ = dry_run(file)
    assert code == INFEASIBLE
    assert "license-nvidia-open-model" in out
    assert out == sparkfleet("plan", file, "--assume", "dgx-spark", "-i", two_sparks)[1]


@pytest.mark.parametrize("option", [("--assume", "dgx-spark"), ("--json",)])
def test_what_only_a_dry_run_takes_is_refused_elsewhere(sparkfleet, deployments, two_sparks, option):
    code, out, err = sparkfleet("apply", deployments / "qwen3-30b-a3b.yaml", *option, "-i", two_sparks)
    assert code == ERROR
    assert f"{option[0]} needs --dry-run" in err
    assert bool(out) == ("--json" in option), "an error is a document, if one was requested"

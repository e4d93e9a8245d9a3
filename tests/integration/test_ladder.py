"""The ladder on two simulated Sparks: what does not start on the first is told with its cause, and the second serves."""

import os
import stat
import sys

import pytest
import yaml
from lab_fleet import LabFleet, lab_of

from sparkfleet.cli.session import Session, run
from sparkfleet.control.requests import ApplyRequest
from sparkfleet.planning.plan import (
    Band,
    Candidate,
    DeploymentPlan,
    GroupPlan,
    Prediction,
    Rung,
    Shape,
    Speculation,
)
from sparkfleet.spec.deployment import Deployment

pytestmark = pytest.mark.integration

TINY = "name: tiny\nmodel: builtin:tiny\ncontext: 512\nconcurrency: 4\n"

BROKEN = """#!{python}
# Stands where a node's interpreter stands: it is that interpreter, but for the engine's own program.
import os, sys, time
if "vllm.entrypoints.openai.api_server" in sys.argv:
    {fault}
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""
MEMORY = 'print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True); sys.exit(1)'
RETAGGED = """#!{python}
# SGLang as it was after its image was re-tagged (field report 001): NEXTN dies. There is no GPU for the rest of it: it also
# has no memory for NGRAM, and real vLLM on the CPU answers where it would serve.
import os, sys
words = sys.argv[1:]
if not any("sglang.launch_server" in word for word in words):
    os.execv({python!r}, [{python!r}, *words])
said = dict(zip(words, words[1:]))
match said.get("--speculative-algorithm"):
    case "NEXTN":
        print("Traceback (most recent call last):", flush=True)
        print("TypeError: '>' not supported between instances of 'NoneType' and 'int'", flush=True)
        sys.exit(1)
    case "NGRAM":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
        sys.exit(1)
os.environ.update(VLLM_API_KEY=os.environ["SPARKFLEET_ENGINE_TOKEN"], VLLM_ENABLE_V1_MULTIPROCESSING="0")
os.environ.update(VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", VLLM_NO_USAGE_STATS="1")
same = [word for flag in ("--served-model-name", "--host", "--port") for word in (flag, said[flag])]
mine = ["--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory-bytes", "67108864", "--enforce-eager"]
vllm = "vllm.entrypoints.openai.api_server"
os.execv({python!r}, [{python!r}, "-m", vllm, "--model", said["--model-path"], *same, *mine])
"""
KNOWN = 'print("This kernel only supports sm120.", flush=True); sys.exit(1)'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two Sparks; what the first has for an engine is a file that a test writes."""
    directory = tmp_path_factory.mktemp("ladder")
    os.chmod(directory, 0o755)
    with lab_of(2, shares=(*LabFleet.shares(), directory)) as lab:
        fleet = LabFleet(lab, directory)
        inventory = yaml.safe_load((directory / "inventory.yaml").read_text())
        inventory["nodes"]["spark1"]["engines"] = {"vllm": {"python": str(directory / "python")}}
        inventory["nodes"]["spark2"]["engines"] = {"vllm": {"python": sys.executable}}
        fleet.write("inventory.yaml", yaml.safe_dump(inventory))
        fleet.bring()
        breaks(fleet, MEMORY)
        fleet.ok("up")
        yield fleet
        fleet.ok("down")
        assert {node.name: fleet.processes(node.name) for node in lab.nodes} == {"spark1": [], "spark2": []}


def breaks(fleet, fault):
    """From now on the first node's engine does this."""
    program(fleet.directory / "python", BROKEN.format(python=sys.executable, fault=fault))


def program(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def test_out_of_memory_is_told_and_the_next_rung_serves(fleet):
    out = fleet.apply(TINY)
    assert "out of memory" in out
    assert "at rung 2 of its ladder" in out
    (group,) = fleet.deployment()["groups"]
    assert (group["node"], group["rung"], group["phase"]) == ("spark2", 1, "ready")
    assert "QSFP" in fleet.chat()


def test_what_did_not_start_is_not_tried_first_again(fleet):
    fleet.ok("delete", "--yes", "tiny")
    _, out, _ = fleet.run("plan", fleet.write("again.yaml", TINY), "--all")
    assert "did not start here: out of memory" in out
    choice = next(line for line in out.splitlines() if "choice" in line)
    assert "spark2" in choice


def test_another_setting_is_tried_again_and_a_known_issue_has_its_name(fleet):
    breaks(fleet, KNOWN)
    out = fleet.apply(TINY.replace("512", "256"))
    assert "fp8-kernel-only-sm120-trap" in out
    assert "at rung 2 of its ladder" in out


def sglang(python, method):
    """A rung on the first node, as a plan for Sparks has it."""
    candidate = Candidate(
        model="builtin:tiny",
        shape=Shape(nodes=("spark1",)),
        engine="sglang",
        engine_version="0.5.12",
        runtime="process",
        python=python,
        speculation=Speculation(method=method, tokens=0 if method == "none" else 3),
        context=512,
        concurrency=4,
        device="cuda",
    )
    prediction = Prediction(memory_bytes_per_rank=Band(low=1e9, mid=1e9, high=2e9))
    return Rung(candidate=candidate, prediction=prediction, reason="of a plan made by hand")


def test_from_nextn_over_ngram_to_none_each_with_its_cause(fleet):
    """What befell field report 001, with the ladder below it."""
    python = fleet.directory / "sglang-python"
    program(python, RETAGGED.format(python=sys.executable))
    ladder = tuple(sglang(str(python), method) for method in ("nextn", "ngram", "none"))
    plan = DeploymentPlan(name="nextn", objective="interactive", groups=(GroupPlan(ladder=ladder),))
    request = ApplyRequest(spec=Deployment(name="nextn", model="builtin:tiny"), plan=plan, who="a test")

    async def apply():
        async with await Session(fleet.directory / "inventory.yaml").controller() as client:
            await client.apply(request)

    run(apply())
    fleet.until(lambda: fleet.deployment("nextn")["state"] in ("ready", "failed"))
    said = fleet.ok("describe", "nextn")
    (group,) = fleet.deployment("nextn")["groups"]
    assert (group["engine"], group["rung"], group["phase"]) == ("sglang", 2, "ready"), said
    assert "sglang-nextn-none-typeerror" in said
    assert "NGRAM k=3 did not start (out of memory" in said
    assert "QSFP" in fleet.chat("nextn")
    fleet.ok("delete", "--yes", "nextn")

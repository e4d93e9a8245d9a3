"""`sparkfleet convert`: what it prints is a deployment that `plan` judges; its notes are apart."""

import json
import shlex
from pathlib import Path

import pytest

from sparkfleet.specs.load import parse_deployment

ROOT = Path(__file__).parents[3]
TWO = "vllm serve org/one\nvllm serve org/two\n"


@pytest.fixture
def script(tmp_path):
    def write(text):
        file = tmp_path / "run.sh"
        file.write_text(text)
        return file

    return write


def test_a_deployment_on_standard_output_and_the_next_commands_apart(sparkfleet, script):
    code, out, err = sparkfleet("convert", script("vllm serve Qwen/Qwen3-8B --port 80 -tp 1"))
    assert code == 0
    assert parse_deployment(out).model == "Qwen/Qwen3-8B"
    assert "--port: an engine listens" in out
    assert err.splitlines() == [
        "`sparkfleet plan FILE` shows if it runs, how fast, and what is known to break",
        "`sparkfleet plan Qwen/Qwen3-8B` shows what is chosen for the model if all is left open",
    ]


def test_several_need_a_directory_or_a_name(sparkfleet, script, tmp_path):
    file = script(TWO)
    code, out, err = sparkfleet("convert", file)
    assert (code, out) == (1, "")
    assert "has 2 launch lines: one, two" in err
    code, out, _ = sparkfleet("convert", file, "--only", "two")
    assert (code, parse_deployment(out).name) == (0, "two")
    code, out, _ = sparkfleet("convert", file, "-o", tmp_path / "made")
    assert (code, out) == (0, f"wrote {tmp_path}/made/one.yaml\nwrote {tmp_path}/made/two.yaml\n")


@pytest.mark.parametrize("setting", ["MODEL", "0=2", "=x", "A B=1"])
def test_a_setting_is_a_name_and_a_value(sparkfleet, script, setting):
    code, _, err = sparkfleet("convert", script("vllm serve $MODEL"), "--set", setting)
    assert code == 1
    assert "Expected NAME=VALUE" in err


def test_a_variable_is_set_by_hand(sparkfleet, script):
    file = script("vllm serve $MODEL")
    assert "`--set MODEL=VALUE` sets it." in sparkfleet("convert", file)[2]
    assert "model: org/m\n" in sparkfleet("convert", file, "--set", "MODEL=org/m")[1]


@pytest.mark.parametrize("name", ["qwen3.6-27b-auto", "gpt-oss-120b-gguf"])
def test_a_launch_line_of_ours_becomes_what_it_was_made_of(
    sparkfleet, deployments, two_sparks, script, name, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plan = ("--dry-run", "--json", "--assume", "dgx-spark", "-i", two_sparks)
    code, out, _ = sparkfleet("apply", deployments / f"{name}.yaml", *plan)
    assert code == 0
    (group,) = json.loads(out)["deployments"][0]["groups"]
    code, out, _ = sparkfleet("convert", script(shlex.join(group["ranks"][0]["argv"])))
    assert code == 0
    made = parse_deployment(out)
    code, out, _ = sparkfleet(
        "plan", deployments / f"{name}.yaml", "--json", "--assume", "dgx-spark", "-i", two_sparks
    )
    (planned,) = json.loads(out)["deployments"]
    chosen = planned["plan"]["groups"][0]["ladder"][0]["candidate"]
    assert (made.engine, made.image, made.context, made.concurrency) == (
        chosen["engine"],
        chosen["image"],
        chosen["context"],
        chosen["concurrency"],
    )
    assert (made.parallel.tp if made.parallel else 1) == chosen["shape"]["tp"]
    method = made.speculation.method if made.speculation.method != "auto" else "none"
    assert (method, made.speculation.tokens or 0) == (
        chosen["speculation"]["method"],
        chosen["speculation"]["tokens"],
    )


def test_the_page_has_what_is_printed(sparkfleet, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, _ = sparkfleet("convert", "docs/examples/run-vllm.sh")
    assert code == 0
    page = (ROOT / "docs" / "converting.md").read_text()
    shown = page.partition("-->\n\n")[2].partition("\n\n<!-- end of converted")[0]
    assert shown == "\n".join(f"    {line}" for line in out.splitlines())

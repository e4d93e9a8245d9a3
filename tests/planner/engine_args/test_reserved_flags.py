import json
from pathlib import Path

import pytest
from planning_values import plan_on

import sparkfleet
from sparkfleet.errors import Infeasible
from sparkfleet.planner.engine_args.reserved_flags import OURS, VARIABLES, _meant

FLAGS = Path(sparkfleet.__file__).parent / "knowledge" / "engines" / "engine_flags"
COPIED = ("--host", "0.0.0.0", "--port=8000", "--served_model_name", "mine", "--api-key", "sk-secret")


def refused(plan, sparks, ask, *args):
    return plan(sparks(1), ask("Qwen/Qwen3.6-27B-FP8", engine="vllm", engine_args=args)).refused


def test_a_copied_scripts_flags_are_refused_each_with_what_to_write_instead(sparks, plan, ask):
    (one,) = refused(plan, sparks, ask, *COPIED)
    reasons = [rejection.reason for rejection in one.rejected]
    assert [reason.split(" ")[0] for reason in reasons] == [
        "--host",
        "--port",
        "--served-model-name",
        "--api-key",
    ]
    assert any("`gateway` of the inventory" in remedy for remedy in one.nearest)
    assert any("set `name` and `model`" in remedy for remedy in one.nearest)


def test_a_key_is_not_shown(sparks, plan, ask):
    (one,) = refused(plan, sparks, ask, *COPIED)
    assert "sk-secret" not in str(one)


@pytest.mark.parametrize("flag", OURS)
def test_every_one_of_them(sparks, plan, ask, flag):
    (one,) = refused(plan, sparks, ask, flag, "2")
    assert one.rejected[0].reason.startswith(flag)


@pytest.mark.parametrize(
    ("flag", "whole"),
    [
        ("--served-model", "--served-model-name"),
        ("--served_model=mine", "--served-model-name"),
        ("--hos", "--host"),
        ("--api-k=sk-secret", "--api-key"),
        ("--data-parallel-s", "--data-parallel-size"),
        ("-n2", "-n"),
        ("-r1", "-r"),
    ],
)
def test_a_beginning_that_engines_take_for_one_of_them(sparks, plan, ask, flag, whole):
    (one,) = refused(plan, sparks, ask, flag, "2")
    assert f"may be read as {whole}, which is managed by sparkfleet" in one.rejected[0].reason
    assert "in full" in one.nearest[0]
    assert "sk-secret" not in str(one)


PARSERS = [file for file in sorted(FLAGS.glob("*.json")) if not file.stem.startswith("llama.cpp")]
"""llama.cpp's parser takes no beginning of a flag for the flag, and has a table of its own."""


@pytest.mark.parametrize("file", PARSERS, ids=lambda file: file.stem)
def test_no_other_flag_of_an_engine_is_such_a_beginning(file):
    options = json.loads(file.read_text())["options"]
    assert len(options) > 30
    assert [flag for flag in options if flag not in OURS and _meant(flag)] == []


@pytest.mark.parametrize("flag", ["--model-loader-extra-config", "--distributed-timeout-seconds", "-q"])
def test_a_flag_that_only_begins_alike_is_the_deployments(sparks, plan, ask, flag):
    assert not refused(plan, sparks, ask, flag, "{}")


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_of_each_rank(sparks, plan, ask, name):
    (one,) = plan(sparks(1), ask("Qwen/Qwen3.6-27B-FP8", env={name: "sk-secret"})).refused
    assert one.rejected[0].reason.startswith(name)
    assert "sk-secret" not in str(one)


def test_other_variables_are_the_deployments(sparks, plan, ask):
    assert not plan(sparks(1), ask("Qwen/Qwen3.6-27B-FP8", env={"NCCL_DEBUG": "INFO"})).refused


def test_on_a_node_without_a_gpu_too(cpu_node, ask):
    with pytest.raises(Infeasible, match="--host is managed by sparkfleet"):
        plan_on(ask("builtin:tiny", engine_args=("--host", "0.0.0.0")), [cpu_node()])


def test_one_copy_is_what_there_is_anyway(sparks, plan, ask):
    assert not refused(plan, sparks, ask, "--data-parallel-size", "1")

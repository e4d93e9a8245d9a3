"""Plans on nodes that are assumed: kinds of Sparks, and facts from a file."""

import json

import pytest

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.errors import UnreachableError
from sparkfleet.fleet import session as session_module


def test_a_smaller_spark_is_another_answer(sparkfleet, deployments, two_sparks):
    argv = ("plan", deployments / "qwen235b-tp2.yaml", "-i", two_sparks, "--assume")
    assert sparkfleet(*argv, "dgx-spark-128")[0] == Exit.PENDING
    code, out, _ = sparkfleet(*argv, "dgx-spark-64")
    assert code == Exit.INFEASIBLE
    assert "does not fit" in out


class TestFactsFromAFile:
    def test_node_by_node(self, sparkfleet, deployments, two_sparks, tmp_path):
        file = tmp_path / "facts.yaml"
        file.write_text("spark1: {memory_total_gb: 64}\nspark2: {memory_available_gb: 110}\n")
        argv = (
            "plan",
            deployments / "qwen3.6-27b-nvfp4-mtp.yaml",
            "-i",
            two_sparks,
            "--json",
            "--assume",
            file,
        )
        nodes = json.loads(sparkfleet(*argv)[1])["nodes"]
        assert [node["total"] for node in nodes] == [64_000_000_000, 130_600_000_000]

    def test_what_a_file_says_is_in_use_is_in_use(self, sparkfleet, deployments, two_sparks, tmp_path):
        file = tmp_path / "facts.yaml"
        file.write_text("spark1: {memory_available_gb: 20}\nspark2: {memory_available_gb: 115.2}\n")
        argv = (
            "plan", deployments / "gpt-oss-120b-eagle3.yaml", "-i", two_sparks, "--json", "--assume", file
        )  # fmt: skip
        nodes = {node["node"]: node for node in json.loads(sparkfleet(*argv)[1])["nodes"]}
        assert nodes["spark1"]["placed"] == []
        assert nodes["spark1"]["usable"] < 20e9 < nodes["spark2"]["usable"]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("spark9: {}", "spark9"),
            ("spark1: {memory: 1}", "memory"),
            ("[1, 2]", "mapping"),
            ("a: [", "YAML"),
            ("spark1: {memory_total_gb: many}", "memory_total_gb"),
            ("spark1: {memory_total_gb: .nan}", "memory_total_gb"),
            ("spark1: {memory_available_gb: -5}", "memory_available_gb"),
        ],
    )
    def test_what_is_wrong_is_named(self, sparkfleet, deployments, two_sparks, tmp_path, text, said):
        file = tmp_path / "facts.yaml"
        file.write_text(text)
        code, _, err = sparkfleet(
            "plan", deployments / "qwen3-30b-a3b.yaml", "-i", two_sparks, "--assume", file
        )
        assert code == Exit.ERROR
        assert said in err

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("spark1: {memory_gb: 64}", ":1: spark1.memory_gb: unknown field "),
            ("spark1:\n  memory_total_gb: many", ":2: spark1.memory_total_gb: found "),
            ("spark1:\n  engines:\n    vllm: {python: /p}", ":3: spark1.engines.vllm.version: missing."),
            ("spark1: 5", ":1: spark1: found the number 5. Expected a mapping"),
            ("spark1: {}\nspark1: {}", ":2: spark1: "),
        ],
    )
    def test_an_error_has_its_line_and_its_field(
        self, sparkfleet, deployments, two_sparks, tmp_path, text, said
    ):
        file = tmp_path / "facts.yaml"
        file.write_text(text)
        _, _, err = sparkfleet("plan", deployments / "qwen3-30b-a3b.yaml", "-i", two_sparks, "--assume", file)
        assert f"{file}{said}" in err

    def test_neither_a_kind_nor_a_file(self, sparkfleet, deployments, two_sparks):
        code, _, err = sparkfleet(
            "plan", deployments / "qwen3-30b-a3b.yaml", "-i", two_sparks, "--assume", "dgx"
        )
        assert code == Exit.ERROR
        assert "dgx-spark-64" in err


def test_without_a_gpu_there_is_a_hint(sparkfleet, deployments, tmp_path):
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("fleet: desk\nhead: a\nnodes:\n  a: {address: local}\n")
    facts = tmp_path / "facts.yaml"
    facts.write_text("a: {gpu: null}\n")
    argv = ("plan", deployments / "qwen3-30b-a3b.yaml", "-i", inventory, "--assume")
    code, out, _ = sparkfleet(*argv, facts)
    assert code == Exit.INFEASIBLE
    assert "--assume dgx-spark" in out
    assert sparkfleet(*argv, "dgx-spark")[0] == Exit.PENDING


def test_for_a_built_in_model_there_is_no_hint_that_would_not_help(sparkfleet, tmp_path):
    inventory, facts, file = (tmp_path / name for name in ("inventory.yaml", "facts.yaml", "tiny.yaml"))
    inventory.write_text("fleet: desk\nhead: a\nnodes:\n  a: {address: local}\n")
    facts.write_text("a: {gpu: null}\n")
    file.write_text("name: tiny\nmodel: builtin:tiny\n")
    code, out, _ = sparkfleet("plan", file, "-i", inventory, "--assume", facts)
    assert code == Exit.INFEASIBLE
    assert "hint" not in out


def test_nodes_that_do_not_answer_can_be_assumed(sparkfleet, deployments, two_sparks, monkeypatch):
    async def find_controller(*_):
        raise UnreachableError("spark1: no answer", do="Look at its cable.")

    monkeypatch.setattr(session_module, "find_controller", find_controller)
    code, _, err = sparkfleet("plan", deployments / "qwen3-30b-a3b.yaml", "-i", two_sparks)
    assert code == Exit.UNREACHABLE
    assert err.splitlines() == [
        "error: spark1: no answer",
        "Look at its cable.",
        "`--assume dgx-spark` plans without contacting the nodes.",
    ]

import json
import re

import pytest

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.output import console
from sparkfleet.fleet.nodes.assumed import assume
from sparkfleet.fleet.planning import plan as module
from sparkfleet.fleet.planning.checkpoints import checkpoints_of
from sparkfleet.fleet.session import Session
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.specs.load import load_inventory


def test_a_plan_on_assumed_nodes(sparkfleet, deployments, two_sparks):
    code, out, err = sparkfleet(
        "plan", deployments / "qwen235b-tp2.yaml", "-i", two_sparks, "--assume", "dgx-spark"
    )
    assert (code, err) == (Exit.PENDING, "")
    assert "assumed, not read" in out
    assert "spark1+spark2 · TP=2 EP=2" in out
    assert "+ start  qwen3-235b" in out


def test_without_assuming_nodes_have_to_be_reached(sparkfleet, deployments, two_sparks, tmp_path):
    nowhere = tmp_path / "nowhere.yaml"
    nowhere.write_text(re.sub(r"192\.168\.1\.1(\d)", r"127.0.0.1\1, port: 1", two_sparks.read_text()))
    for verb in (("plan",), ("apply", "--yes")):
        code, out, err = sparkfleet(*verb, deployments / "qwen235b-tp2.yaml", "-i", nowhere)
        assert (code, out) == (Exit.UNREACHABLE, "")
        assert "cannot be reached" in err


def test_infeasible_is_told_and_ends_with_3(sparkfleet, deployments, two_sparks):
    file = deployments / "nemotron-3-super-open.yaml"
    code, out, _ = sparkfleet("plan", file, "-i", two_sparks, "--assume", "dgx-spark")
    assert code == Exit.INFEASIBLE
    assert "infeasible" in out
    assert "license-nvidia-open-model" in out


def test_apply_tells_what_is_infeasible_as_plan_does(sparkfleet, deployments, two_sparks, monkeypatch):
    """The same text; beside the other, which fits, nothing is applied."""
    fleet = Fleet(name="home", nodes=assume("dgx-spark", load_inventory(two_sparks)))

    async def as_assumed(*_):
        return fleet

    async def nothing(*_):
        return None

    async def known(_, specs, fleet):
        return checkpoints_of(specs, fleet.nodes)

    monkeypatch.setattr(module, "fleet_of", as_assumed)
    monkeypatch.setattr(module, "checkpoints_for", known)
    monkeypatch.setattr(Session, "find_controller", nothing)
    files = [deployments / f"{name}.yaml" for name in ("nemotron-3-super-open", "orpheus-tts")]
    planned = sparkfleet("plan", *files, "-i", two_sparks)
    applied = sparkfleet("apply", "--yes", *files, "-i", two_sparks)
    assert planned[0] == applied[0] == Exit.INFEASIBLE
    assert planned[1] == applied[1]
    assert "license-nvidia-open-model" in applied[1]
    assert planned[2] == ""
    assert applied[2].splitlines() == [
        "error: Nothing was applied: this fleet cannot serve nemotron-3-super.",
        "Change the deployment or the inventory as the reasons above suggest, or leave its file out.",
    ]


def test_apply_of_a_model_that_fits_as_a_gguf_alone_has_the_command(sparkfleet, tmp_path, monkeypatch):
    (tmp_path / "one.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    fleet = Fleet(name="home", nodes=assume("dgx-spark", load_inventory(tmp_path / "one.yaml")))

    async def as_assumed(*_):
        return fleet

    async def nothing(*_):
        return None

    async def known(_, specs, fleet):
        return checkpoints_of(specs, fleet.nodes)

    monkeypatch.setattr(module, "fleet_of", as_assumed)
    monkeypatch.setattr(module, "checkpoints_for", known)
    monkeypatch.setattr(Session, "find_controller", nothing)
    code, out, err = sparkfleet("apply", "MiniMaxAI/MiniMax-M2.7", "-i", tmp_path / "one.yaml", "--yes")
    assert code == Exit.INFEASIBLE
    command = f"sparkfleet apply -i {tmp_path}/one.yaml unsloth/MiniMax-M2.7-GGUF:UD-IQ4_XS"
    assert f"\n  instead     `{command}` serves a GGUF of it, which fits: " in out
    assert "as the reasons above suggest" in err


def test_a_narrow_terminal(sparkfleet, deployments, two_sparks, monkeypatch):
    """Lines are broken to its width, and the one between headline and plan stays."""
    monkeypatch.setattr(console, "_force_terminal", True)
    monkeypatch.setattr(console, "_width", 72)
    file = deployments / "nemotron-3-super-open.yaml"
    lines = sparkfleet("plan", file, "-i", two_sparks, "--assume", "dgx-spark")[1].splitlines()
    assert max(map(len, lines)) <= 72
    first = next(line for line in lines if line.startswith("  infeasible"))
    assert lines[lines.index(first) - 1] == ""


def test_several_files_are_packed_together(sparkfleet, deployments, two_sparks):
    files = (deployments / "qwen3.6-27b-fp8-nextn.yaml", deployments / "orpheus-tts.yaml")
    _, out, _ = sparkfleet("plan", *files, "-i", two_sparks, "--assume", "dgx-spark")
    assert "spark1: qwen3.6-27b" in out
    assert "spark2: orpheus-tts 24 GiB" in out


def test_json_is_for_programs(sparkfleet, deployments, two_sparks):
    argv = ("plan", deployments / "qwen3-30b-a3b.yaml", "-i", two_sparks, "--assume", "dgx-spark", "--json")
    code, out, _ = sparkfleet(*argv)
    body = json.loads(out)
    assert code == Exit.PENDING
    assert body["version"] == 1
    assert body["assumed"] == ["spark1", "spark2"]
    (one,) = body["deployments"]
    assert one["plan"]["groups"][0]["ladder"][0]["candidate"]["engine"] == "vllm"
    assert body["refused"] == []
    assert [node["node"] for node in body["nodes"]] == ["spark1", "spark2"]


def test_why_and_all(sparkfleet, deployments, two_sparks):
    argv = ("plan", deployments / "qwen3.6-27b-fp8-nextn.yaml", "-i", two_sparks, "--assume", "dgx-spark")
    _, why, _ = sparkfleet(*argv, "--why", "TP=2")
    assert "tok/s for one user against" in why
    assert "sparkfleet explain" in why
    _, full, _ = sparkfleet(*argv, "--all")
    assert "(--all)" not in full


def test_an_unknown_model_says_what_to_do(sparkfleet, two_sparks, tmp_path):
    file = tmp_path / "d.yaml"
    file.write_text("name: x\nmodel: openai/gpt-os-120b\n")
    code, _, err = sparkfleet("plan", file, "-i", two_sparks, "--assume", "dgx-spark")
    assert code == Exit.ERROR
    assert "hf download" in err
    assert "config.json alone is enough for a plan" in err
    assert "openai/gpt-oss-120b" in err


def test_every_example_has_an_answer(sparkfleet, deployments, two_sparks):
    for file in sorted(deployments.glob("*.yaml")):
        if file.stem == "tiny-local":
            continue
        code, out, err = sparkfleet("plan", file, "-i", two_sparks, "--assume", "dgx-spark")
        assert code in (Exit.PENDING, Exit.INFEASIBLE), file
        assert not err
        assert_readable(out)
        if code == Exit.PENDING:
            body = out[out.index("  choice ") :]
            # An advisory, the predicted start, a lost node, the command for a lost head, the reason of a rung's place, a
            # published rate and the recipe of a variant are worth a line each, a prefix cache that finds nothing with the
            # release that mends it four.
            worth = (
                "(security-advisory)",
                "  start  ",
                "  node lost",
                " --lost`",
                "behind rung",
                "published: ",
                "recipes;",
            )
            most = 28 + sum(words in body for words in worth) + 4 * ("  prefix  " in body)
            assert body.count("  choice ") > 1 or len(body.splitlines()) <= most, (
                f"{file} does not fit a screen"
            )
            assert out.rstrip().splitlines()[-1].endswith("1 to start, 0 to change")
            assert "  verdict     " in out


PYTHON = re.compile(r"\bNone\b|\bTrue\b|\bFalse\b|<class|\('|\['|\{'|\d{5,}\.\d|\bnan\b|\binf\b")
"""Values that a program prints and a person does not write."""


def assert_readable(out):
    """Every line fits 100 columns, unless it is one word, and has no value of Python."""
    for line in out.splitlines():
        assert len(line) <= 100 or " " not in line.strip(), line
        assert not PYTHON.search(line), line


def test_a_prediction_is_explained(sparkfleet, deployments, two_sparks):
    argv = ("plan", deployments / "qwen3.6-27b-nvfp4-mtp.yaml", "-i", two_sparks, "--assume", "dgx-spark")
    plain, explained = sparkfleet(*argv)[1], sparkfleet(*argv, "--explain", "--rung", "1")[1]
    assert explained.startswith(plain), "the plan itself is the same"
    assert "qwen3.6-27b, rung 1\n  ITL of one request alone" in explained
    assert "tokens per step" in explained
    without, with_ = (json.loads(sparkfleet(*argv, "--json", *more)[1]) for more in ((), ("--explain",)))
    (itl, ttft) = with_.pop("explained")["qwen3.6-27b"]
    assert without == with_
    assert (itl["quantity"], ttft["quantity"]) == ("ITL", "TTFT")
    assert {"name", "amount", "unit", "rate", "source", "ceiling_ms", "factor", "ms"} <= itl["terms"][
        0
    ].keys()
    code, _, err = sparkfleet(*argv, "--explain", "--rung", "99")
    assert (code, "there is no rung 99" in err) == (Exit.ERROR, True)


@pytest.mark.parametrize("verb", ["plan", "apply"])
@pytest.mark.parametrize(
    "given", [["-f", "one.yaml"], ["one.yaml"], ["--file", "one.yaml", "-f", "dir"], ["dir"]]
)
def test_files_are_arguments_or_options_and_directories_are_files(
    sparkfleet, tmp_path, monkeypatch, verb, given
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory.yaml").write_text(
        "fleet: home\nhead: a\nnodes:\n  a: {address: 10.0.0.1, user: u}\n"
    )
    (tmp_path / "one.yaml").write_text("name: one\nmodel: org/a\nmodl: x\n")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "two.yaml").write_text("name: two\nmodel: org/a\nmodl: x\n")
    code, _, err = sparkfleet(verb, *given)
    assert code == 1
    assert ("one.yaml:3: modl: " in err, "two.yaml:3: modl: " in err) == ("one.yaml" in given, "dir" in given)


@pytest.mark.parametrize("verb", ["plan", "apply"])
@pytest.mark.parametrize("given", [[""], ["-f", ""], ["one.yaml", ""]])
def test_an_empty_name_is_not_the_whole_directory(sparkfleet, tmp_path, monkeypatch, verb, given):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.yaml").write_text("name: one\nmodel: org/a\n")
    code, out, err = sparkfleet(verb, *given)
    assert (code, out) == (Exit.ERROR, "")
    assert "an empty name" in err


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_no_file_at_all_is_an_error_with_the_command(sparkfleet, verb):
    code, _, err = sparkfleet(verb)
    assert (code, err.splitlines()) == (
        1,
        [
            "error: No deployment's file and no model is given.",
            f"`sparkfleet {verb} FILE`; a directory means all files in it, `-` for standard input.",
            f"`sparkfleet {verb} ORG/MODEL` leaves everything but the model open.",
        ],
    )

import json
import re

import pytest
import statuses

from sparkfleet.cli.output import console
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.errors import UnreachableError
from sparkfleet.fleet import session as session_module
from sparkfleet.fleet.nodes.assumed import assume
from sparkfleet.fleet.planning import plan as module
from sparkfleet.fleet.planning.checkpoints import checkpoints_of
from sparkfleet.fleet.planning.fleet_decision import decide
from sparkfleet.fleet.session import Session
from sparkfleet.hostfacts.node import Gpu, InstalledEngine, NodeFacts, Processors, UnifiedMemory
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.rules.failure_memory import RememberedFailure, fingerprint
from sparkfleet.planner.types.image_refs import digests_of, with_digests
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.load import load_deployment, load_inventory

EXITS = {"pending": 2, "infeasible": 3, "error": 1, "unreachable": 4}


def test_a_plan_on_assumed_nodes(sparkfleet, deployments, two_sparks):
    code, out, err = sparkfleet(
        "plan", deployments / "qwen235b-tp2.yaml", "-i", two_sparks, "--assume", "dgx-spark"
    )
    assert (code, err) == (EXITS["pending"], "")
    assert "assumed, not read" in out
    assert "spark1+spark2 · TP=2 EP=2" in out
    assert "+ start  qwen3-235b" in out


def test_without_assuming_nodes_have_to_be_reached(sparkfleet, deployments, two_sparks, tmp_path):
    nowhere = tmp_path / "nowhere.yaml"
    nowhere.write_text(re.sub(r"192\.168\.1\.1(\d)", r"127.0.0.1\1, port: 1", two_sparks.read_text()))
    for verb in (("plan",), ("apply", "--yes")):
        code, out, err = sparkfleet(*verb, deployments / "qwen235b-tp2.yaml", "-i", nowhere)
        assert (code, out) == (EXITS["unreachable"], "")
        assert "cannot be reached" in err


def test_infeasible_is_told_and_ends_with_3(sparkfleet, deployments, two_sparks):
    file = deployments / "nemotron-3-super-open.yaml"
    code, out, _ = sparkfleet("plan", file, "-i", two_sparks, "--assume", "dgx-spark")
    assert code == EXITS["infeasible"]
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
    assert planned[0] == applied[0] == EXITS["infeasible"]
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
    assert code == EXITS["infeasible"]
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
    assert code == EXITS["pending"]
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


def test_a_smaller_spark_is_another_answer(sparkfleet, deployments, two_sparks):
    argv = ("plan", deployments / "qwen235b-tp2.yaml", "-i", two_sparks, "--assume")
    assert sparkfleet(*argv, "dgx-spark-128")[0] == EXITS["pending"]
    code, out, _ = sparkfleet(*argv, "dgx-spark-64")
    assert code == EXITS["infeasible"]
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
        assert code == EXITS["error"]
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
        assert code == EXITS["error"]
        assert "dgx-spark-64" in err


def test_without_a_gpu_there_is_a_hint(sparkfleet, deployments, tmp_path):
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("fleet: desk\nhead: a\nnodes:\n  a: {address: local}\n")
    facts = tmp_path / "facts.yaml"
    facts.write_text("a: {gpu: null}\n")
    argv = ("plan", deployments / "qwen3-30b-a3b.yaml", "-i", inventory, "--assume")
    code, out, _ = sparkfleet(*argv, facts)
    assert code == EXITS["infeasible"]
    assert "--assume dgx-spark" in out
    assert sparkfleet(*argv, "dgx-spark")[0] == EXITS["pending"]


def test_for_a_built_in_model_there_is_no_hint_that_would_not_help(sparkfleet, tmp_path):
    inventory, facts, file = (tmp_path / name for name in ("inventory.yaml", "facts.yaml", "tiny.yaml"))
    inventory.write_text("fleet: desk\nhead: a\nnodes:\n  a: {address: local}\n")
    facts.write_text("a: {gpu: null}\n")
    file.write_text("name: tiny\nmodel: builtin:tiny\n")
    code, out, _ = sparkfleet("plan", file, "-i", inventory, "--assume", facts)
    assert code == EXITS["infeasible"]
    assert "hint" not in out


def test_nodes_that_do_not_answer_can_be_assumed(sparkfleet, deployments, two_sparks, monkeypatch):
    async def find_controller(*_):
        raise UnreachableError("spark1: no answer", do="Look at its cable.")

    monkeypatch.setattr(session_module, "find_controller", find_controller)
    code, _, err = sparkfleet("plan", deployments / "qwen3-30b-a3b.yaml", "-i", two_sparks)
    assert code == EXITS["unreachable"]
    assert err.splitlines() == [
        "error: spark1: no answer",
        "Look at its cable.",
        "`--assume dgx-spark` plans without contacting the nodes.",
    ]


def test_an_unknown_model_says_what_to_do(sparkfleet, two_sparks, tmp_path):
    file = tmp_path / "d.yaml"
    file.write_text("name: x\nmodel: openai/gpt-os-120b\n")
    code, _, err = sparkfleet("plan", file, "-i", two_sparks, "--assume", "dgx-spark")
    assert code == EXITS["error"]
    assert "hf download" in err
    assert "config.json alone is enough for a plan" in err
    assert "openai/gpt-oss-120b" in err


def test_every_example_has_an_answer(sparkfleet, deployments, two_sparks):
    for file in sorted(deployments.glob("*.yaml")):
        if file.stem == "tiny-local":
            continue
        code, out, err = sparkfleet("plan", file, "-i", two_sparks, "--assume", "dgx-spark")
        assert code in (EXITS["pending"], EXITS["infeasible"]), file
        assert not err
        assert_readable(out)
        if code == EXITS["pending"]:
            body = out[out.index("  choice ") :]
            # An advisory and the predicted start are worth a line each.
            most = 28 + ("(security-advisory)" in body) + ("  start  " in body)
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


class TestApplying:
    """`decide` is what apply asks: only what can be launched comes through."""

    def node(self, **fields):
        home = {"vllm": InstalledEngine(python="/venv/bin/python", version="0.32.0+cpu")}
        base = {
            "name": "this",
            "memory": UnifiedMemory(total=130_600_000_000, available=115_000_000_000),
            "processors": Processors(count=2, machine="x86_64"),
            "gpu": None,
            "engines": home,
        }
        return NodeFacts(**{**base, **fields})

    def test_the_embedded_engine(self, deployments):
        spec = load_deployment(deployments / "tiny-local.yaml")
        (planned,) = decide([spec], Fleet(nodes=(self.node(),)), None, {}).planned
        assert planned.change.verb == "start"

    @pytest.mark.parametrize(
        ("state", "verb"), [("ready", "keep"), ("starting", "keep"), ("failed", "start")]
    )
    def test_what_is_given_up_is_asked_for_once_more(self, deployments, state, verb):
        """The same file again changes nothing, except of what has failed, as every message about that advises."""
        spec, fleet = load_deployment(deployments / "tiny-local.yaml"), Fleet(nodes=(self.node(),))
        (planned,) = decide([spec], fleet, None, {}).planned
        known = DeploymentStatus(
            name=spec.name, generation=1, state=state, detail="", who="me", since=0.0, plan=planned.plan,
            spec=spec.model_dump_json(), groups=(),
        )  # fmt: skip
        status = statuses.fleet(known)
        (again,) = decide([spec], fleet, status, {}).planned
        assert again.change.verb == verb

    def test_what_is_remembered_not_to_start_is_tried_on_request(self):
        """And what runs at a lower rung begins at the top of its ladder once more."""
        spec = Deployment.model_validate({"name": "m", "model": "Qwen/Qwen3.6-27B-FP8"})
        known = {spec.model: known_checkpoint(spec.model)}
        gpu = Gpu(name="NVIDIA GB10", driver="580.142")
        memory = UnifiedMemory(total=130_600_000_000, available=118_000_000_000)
        processors = Processors(count=20, machine="aarch64")
        node = NodeFacts(name="spark1", memory=memory, processors=processors, gpu=gpu, engines={})
        fleet = Fleet(nodes=(node,), assumed=("spark1",))
        (fresh,) = decide([spec], fleet, None, known).planned
        top, *lower = fresh.plan.groups[0].ladder
        assert fresh.plan.drivers == (("spark1", "580.142"),)
        mark = fingerprint(top.candidate, fresh.plan.drivers)
        status = statuses.fleet(failures=(RememberedFailure(fingerprint=mark, words="known issue"),))
        (barred,) = decide([spec], fleet, status, known).planned
        assert barred.plan.groups[0].ladder == tuple(lower)
        assert "`sparkfleet apply --retry`" in barred.plan.rejected[0].reason
        (wished,) = decide([spec], fleet, status, known, retry=True).planned
        assert wished.plan.groups[0].choice == top
        runs = DeploymentStatus(
            name="m", generation=1, state="ready", detail="", who="me", since=0.0, plan=fresh.plan,
            spec=spec.model_dump_json(), groups=(), passed=(("known issue",),),
        )  # fmt: skip
        status = status.model_copy(update={"deployments": (runs,)})
        (kept,) = decide([spec], fleet, status, known).planned
        assert kept.change.verb == "keep"
        (again,) = decide([spec], fleet, status, known, retry=True).planned
        assert (again.change.verb, again.change.fields) == ("change", ("rung: 2 → 1",))
        at_the_top = status.model_copy(update={"deployments": (runs.model_copy(update={"passed": ((),)}),)})
        assert decide([spec], fleet, at_the_top, known, retry=True).planned[0].change.verb == "keep"

    def test_a_tag_that_is_deployed_keeps_its_digest_until_it_is_to_be_renewed(self):
        """The tag may have another digest by now."""
        tag, pinned = "localhost/tts:latest", f"localhost/tts:latest@sha256:{'a' * 64}"
        spec = Deployment.model_validate(
            {
                "name": "tts",
                "engine": "custom",
                "model": "org/tts",
                "image": tag,
                "port": 8880,
                "memory": "24 GiB",
            }
        )
        fleet = Fleet(nodes=(self.node(),))
        (first,) = decide([spec], fleet, None, {}).planned
        assert digests_of(first.plan) == {}
        known = DeploymentStatus(
            name=spec.name, generation=1, state="ready", detail="", who="me", since=0.0,
            plan=with_digests(first.plan, {tag: pinned}), spec=spec.model_dump_json(), groups=(),
        )  # fmt: skip
        status = statuses.fleet(known)
        (again,) = decide([spec], fleet, status, {}).planned
        assert again.change.verb == "keep"
        longer = spec.model_copy(update={"context": 2048})
        (changed,) = decide([longer], fleet, status, {}).planned
        assert changed.change.verb == "change"
        assert digests_of(changed.plan) == {tag: pinned}
        (renewed,) = decide([spec], fleet, status, {}, renew=True).planned
        assert renewed.change.fields == (f"plan.image: {pinned} → {tag}",)

    def test_several_are_packed_together(self):
        specs = [
            Deployment.model_validate({"name": name, "model": "builtin:tiny", "replicas": 2}) for name in "ab"
        ]
        nodes = (self.node(), self.node(name="that"))
        for planned in decide(specs, Fleet(nodes=nodes), None, {}).planned:
            used = [group.choice.candidate.shape.nodes for group in planned.plan.groups]
            assert sorted(used) == [("that",), ("this",)]


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
    assert (code, "there is no rung 99" in err) == (EXITS["error"], True)


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
    assert (code, out) == (EXITS["error"], "")
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


class TestWithoutFiles:
    @pytest.fixture(autouse=True)
    def nowhere(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("SPARKFLEET_INVENTORY", raising=False)

    def test_a_model_is_planned_for_sparks_that_nobody_has(self, sparkfleet):
        code, out, err = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "2", "--offline")
        assert (code, err) == (EXITS["pending"], "")
        assert "gpt-oss-120b   objective interactive" in out
        assert "2 Sparks (assumed, not read), 1 link" in out
        assert "`sparkfleet apply openai/gpt-oss-120b` serves it as gpt-oss-120b" in out
        assert "`name: gpt-oss-120b`, `model: openai/gpt-oss-120b`" in out
        assert "  next        `sparkfleet init HOST…` lists your Sparks in inventory.yaml\n" in out

    def test_a_faster_gguf_that_the_plan_names_is_among_the_next_commands(self, sparkfleet):
        _, out, _ = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "1", "--offline")
        assert (
            "`sparkfleet apply openai/gpt-oss-120b` serves it as gpt-oss-120b\n"
            "              `sparkfleet apply ggml-org/gpt-oss-120b-GGUF:MXFP4` serves a GGUF of it:"
            " 55.7 tok/s for one user, 1.6×\n"
        ) in out

    def test_a_gguf_that_alone_fits_is_the_next_command(self, sparkfleet):
        code, out, _ = sparkfleet("plan", "MiniMaxAI/MiniMax-M2.7", "--sparks", "1", "--offline")
        assert code == EXITS["infeasible"]
        gguf = "unsloth/MiniMax-M2.7-GGUF:UD-IQ4_XS"
        assert f"\n              `sparkfleet apply {gguf}` serves a GGUF of it, which fits: " in out
        assert "apply MiniMaxAI" not in out

    def test_a_gguf_and_a_file_have_no_such_command(self, sparkfleet, tmp_path):
        (tmp_path / "model.yaml").write_text("name: gpt-oss-120b\nmodel: openai/gpt-oss-120b\n")
        for given in ("model.yaml", "ggml-org/gpt-oss-120b-GGUF:MXFP4"):
            _, out, _ = sparkfleet("plan", given, "--sparks", "1", "--offline")
            assert "serves a GGUF" not in out

    def test_several_models_of_an_inventory_are_served_by_one_command(self, sparkfleet, two_sparks):
        """Each alone would be planned without the other, and without `-i` for another fleet."""
        models = ("Qwen/Qwen3-32B", "Qwen/Qwen3-8B")
        _, out, _ = sparkfleet("plan", *models, "-i", two_sparks, "--assume", "dgx-spark", "--offline")
        command = f"`sparkfleet apply -i {two_sparks} {' '.join(models)}` serves them as qwen3-32b, qwen3-8b"
        assert command in " ".join(out.split())
        assert out.count("  next  ") == 1

    def test_the_usual_inventory_is_named_if_the_variable_names_another(
        self, sparkfleet, two_sparks, tmp_path, monkeypatch
    ):
        """`apply` without it would be for the other fleet."""
        (tmp_path / "inventory.yaml").write_bytes(two_sparks.read_bytes())
        monkeypatch.setenv("SPARKFLEET_INVENTORY", str(tmp_path / "other.yaml"))
        asked = ("plan", "Qwen/Qwen3-8B", "-i", "inventory.yaml", "--assume", "dgx-spark", "--offline")
        assert "`sparkfleet apply -i inventory.yaml Qwen/Qwen3-8B`" in sparkfleet(*asked)[1]

    @pytest.mark.parametrize("file", ["inventory.yaml", "of-the-variable.yaml"])
    def test_an_inventory_that_is_there_need_not_be_made(self, sparkfleet, tmp_path, monkeypatch, file):
        (tmp_path / file).write_text("fleet: home\n")
        monkeypatch.setenv("SPARKFLEET_INVENTORY", str(tmp_path / file))
        _, out, _ = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "2", "--offline")
        assert "  next        `sparkfleet apply openai/gpt-oss-120b` serves it" in out

    def test_its_plan_is_that_of_a_file_and_an_inventory(self, sparkfleet, two_sparks, tmp_path):
        (tmp_path / "model.yaml").write_text("name: gpt-oss-120b\nmodel: openai/gpt-oss-120b\n")
        _, by_file, _ = sparkfleet("plan", "model.yaml", "-i", two_sparks, "--assume", "dgx-spark", "--json")
        _, by_name, _ = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "2", "--json")
        assert json.loads(by_name) == json.loads(by_file)

    def test_the_commands_of_a_model(self, sparkfleet):
        code, out, err = sparkfleet("apply", "--dry-run", "openai/gpt-oss-120b", "--sparks", "1")
        assert (code, err) == (0, "")
        assert "--served-model-name gpt-oss-120b" in out

    def test_without_an_inventory_there_is_a_hint(self, sparkfleet):
        code, _, err = sparkfleet("plan", "openai/gpt-oss-120b")
        assert code == EXITS["error"]
        assert "`--sparks 2` plans for two Sparks without one." in err

    def test_sparks_and_an_inventory_exclude_each_other(self, sparkfleet, two_sparks):
        code, out, err = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "2", "-i", two_sparks)
        assert (code, out) == (EXITS["error"], "")
        assert "`--sparks` and `--inventory` are both given." in err

    def test_an_inventory_of_the_environment_is_not_used(self, sparkfleet, two_sparks, monkeypatch):
        monkeypatch.setenv("SPARKFLEET_INVENTORY", str(two_sparks))
        code, out, _ = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "1")
        assert code == EXITS["pending"]
        assert "1 Spark (assumed, not read)" in out

    def test_apply_does_not_serve_on_assumed_sparks(self, sparkfleet):
        code, out, err = sparkfleet("apply", "openai/gpt-oss-120b", "--sparks", "2")
        assert (code, out) == (EXITS["error"], "")
        assert "--sparks needs --dry-run." in err


def methods_of(plan):
    """Engine and method of each rung of a plan."""
    (group, *_) = plan["deployments"][0]["plan"]["groups"]
    candidates = (rung["candidate"] for rung in group["ladder"])
    return [(one["engine"], one["speculation"]["method"]) for one in candidates]


class TestNamesThatOwnersType:
    """Of each, the source is in the rule or the entry that it names."""

    @pytest.fixture
    def rungs(self, sparkfleet):
        def rungs(model, sparks):
            code, out, err = sparkfleet("plan", model, "--sparks", sparks, "--offline", "--json")
            assert (code, err) == (EXITS["pending"], "")
            return methods_of(json.loads(out))

        return rungs

    @pytest.mark.parametrize(
        "draft",
        ["z-lab/Qwen3.8-27B-DFlash2", "google/gemma-4-31B-it-assistant", "nvidia/gpt-oss-120b-Eagle3-v3"],
    )
    def test_a_draft_is_not_planned_as_its_target(self, sparkfleet, draft):
        code, out, err = sparkfleet("plan", draft, "--sparks", "1", "--offline")
        assert (code, out) == (EXITS["error"], "")
        assert f"{draft} is a draft for " in err
        assert f"draft: {draft}" in err

    def test_a_head_that_does_not_load_is_no_rung(self, rungs):
        """glm53-nvidia-mtp, sglang-dsa-no-backend: what remains is what two authors ran."""
        assert rungs("nvidia/GLM-5.3-Flash-NVFP4", 2) == [("vllm", "dflash2"), ("vllm", "none")]
        assert ("vllm", "mtp") in rungs("RedHatAI/GLM-5.3-Flash-NVFP4", 2)

    @pytest.mark.parametrize(
        ("model", "sparks"),
        [
            ("nvidia/DeepSeek-V4-Flash-NVFP4", 2),
            ("lukealonso/MiMo-V2.5-NVFP4", 2),
            ("poolside/Laguna-S-2.1-NVFP4", 1),
        ],
    )
    def test_an_engine_without_the_architecture_is_no_rung(self, rungs, model, sparks):
        """trtllm-older-than-architecture."""
        assert "trtllm" not in {engine for engine, _ in rungs(model, sparks)}

    def test_an_engine_without_attention_for_the_gpu_is_no_rung(self, sparkfleet):
        """vllm-dsa-no-backend: vLLM 0.20.0 was the choice, as the only image that no list of formats excludes."""
        argv = ("plan", "QuantTrio/GLM-5.2-Int4-Int8Mix", "--sparks", "4", "--offline", "--json")
        (group,) = json.loads(sparkfleet(*argv)[1])["deployments"][0]["plan"]["groups"]
        versions = {rung["candidate"]["engine_version"] for rung in group["ladder"]}
        assert "0.20.0" not in versions
        assert group["ladder"][0]["candidate"]["engine"] == "vllm"

    def test_a_build_whose_version_is_known_is_not_called_unknown(self, sparkfleet):
        """b12x-aug15-regression is about one build of another image."""
        _, out, _ = sparkfleet("plan", "deepseek-ai/DeepSeek-V4-Flash", "--sparks", "2", "--offline")
        assert "b12x-aug15-regression" not in out

    def test_inkling_runs_on_sglang_with_the_kernels_of_its_recipe(self, sparkfleet, rungs):
        """inkling-vllm-attention, inkling-sglang-marlin, inkling-dspark-page, trtllm-inkling."""
        model = "thinkingmachines/Inkling-Small-NVFP4"
        found = rungs(model, 2)
        assert (found[0], {engine for engine, _ in found}) == (("sglang", "dspark"), {"sglang"})
        _, out, _ = sparkfleet("apply", "--dry-run", model, "--sparks", "2", "--offline")
        assert "--moe-runner-backend=marlin" in out
        assert "--page-size=1" in out
        assert "--tool-call-parser inkling" in out

    def test_dspark_of_deepseek_is_tried_on_both_engines(self, sparkfleet, rungs):
        assert {("vllm", "dspark"), ("sglang", "dspark")} <= set(
            rungs("deepseek-ai/DeepSeek-V4-Flash-0731", 2)
        )
        vision = rungs("deepseek-ai/DeepSeek-V4-Flash-Vision-Exp", 2)
        assert {engine for engine, _ in vision} == {"vllm"}  # sglang-v4f-vision

    def test_a_revision_names_the_bits_of_exl3(self, sparkfleet, rungs):
        """The best published configuration of GLM-5.3-Flash on two Sparks, by the name that its maker gives it."""
        assert rungs("turboderp/GLM-5.3-Flash-exl3@4.05bpw", 2)[0] == ("vllm", "dflash2")
        _, _, err = sparkfleet("plan", "turboderp/GLM-5.3-Flash-exl3", "--sparks", "2", "--offline")
        assert "`turboderp/GLM-5.3-Flash-exl3@4.0bpw`" in err

    def test_a_format_is_planned_on_the_release_that_was_seen_with_it(self, sparkfleet):
        """ngc-vllm-26.07: six formats of Qwen3.8-27B; vLLM 0.20.0 was seen with BF16 alone."""
        argv = ("plan", "Qwen/Qwen3-32B-AWQ", "--sparks", "1", "--offline", "--json")
        (group,) = json.loads(sparkfleet(*argv)[1])["deployments"][0]["plan"]["groups"]
        assert group["ladder"][0]["candidate"]["image"] == "nvcr.io/nvidia/vllm:26.07-py3"


def test_a_rung_without_an_explanation_is_not_ignored(sparkfleet):
    code, _, err = sparkfleet("plan", "--sparks", "1", "Qwen/Qwen3.6-27B-FP8", "--rung", "3")
    assert code == EXITS["error"]
    assert "--explain --rung 3" in err

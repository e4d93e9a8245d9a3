"""Every command line of every example deployment, held against the options of every release that is known.

The files in `flags/` were written from the engines' own parsers; `test_real_parsers.py` asks the parsers themselves.
"""

import itertools
from pathlib import Path

import pytest
from packaging.version import InvalidVersion, Version

from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.errors import EngineError
from sparkfleet.fleet.nodes.assumed import assume
from sparkfleet.fleet.planning.checkpoints import checkpoints_of
from sparkfleet.knowledge.engines.method_support import names_of
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet, links_of
from sparkfleet.specs.load import load_deployments, load_inventory

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "deployments").glob("*.yaml"))
REFUSED = {"nemotron-3-super-open", "tiny-local"}
"""Of the examples, those that the planner refuses on Sparks."""


@pytest.fixture(scope="module")
def inventory():
    return load_inventory(ROOT / "docs" / "examples" / "inventory-two-sparks.yaml")


@pytest.fixture(scope="module")
def ladders(inventory):
    """The candidates of an example on two Sparks, all rungs of all groups."""
    facts = assume("dgx-spark", inventory)
    fleet = Fleet(nodes=facts, links=links_of(inventory), assumed=tuple(node.name for node in facts))

    def plan(name):
        specs = load_deployments([ROOT / "deployments" / f"{name}.yaml"])
        found = plan_fleet(specs, fleet, checkpoints_of(specs, facts), {})
        return [rung.candidate for one in found.deployments for group in one.groups for rung in group.ladder]

    return {name: plan(name) for name in EXAMPLES}


def lines(candidate, context):
    """The engine's own command lines, one per rank."""
    ranks = candidate.shape.ranks
    more = {"keys_dir": "/k"} if ranks > 1 else {}
    for rank in range(ranks):
        yield engine_by_name(candidate.engine).launch(candidate, context(rank, ranks, **more)).argv


def after_the_program(argv):
    if "serve" in argv:
        return argv[argv.index("serve") + 2 :]
    return argv[3:] if argv[1] == "-c" else argv


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_release_is_given_a_flag_that_it_does_not_have(ladders, parsers, context, name):
    assert bool(ladders[name]) == (name not in REFUSED)
    for candidate in ladders[name]:
        for argv in lines(candidate, context):
            for parser in of_its_release(candidate, parsers(candidate.engine)):
                complaints = list(parser.complaints(after_the_program(argv)))
                assert not complaints, f"{parser.engine} {parser.version}: {candidate}: {complaints}"


def of_its_release(candidate, parsers):
    """Parsers of the candidate's release, or of the ones next to it; of those since spring 2026 if its release is not known.

    No image without a known release is older.
    """
    try:
        own = Version(candidate.engine_version)
    except InvalidVersion:
        return [one for one in parsers if one.engine != "vllm" or Version(one.version) >= Version("0.19")]
    older = [one for one in parsers if Version(one.version) <= own]
    newer = [one for one in parsers if Version(one.version) >= own]
    nearest = [*sorted(older, key=lambda one: Version(one.version))[-1:]]
    nearest += sorted(newer, key=lambda one: Version(one.version))[:1]
    assert nearest
    return nearest


METHODS = {engine: names_of(engine) for engine in ("vllm", "sglang", "trtllm", "llama.cpp")}
SHAPES = ({}, {"nodes": 2}, {"nodes": 2, "ep": 2}, {"nodes": 4, "pp": 2})
SETTINGS = (
    {},
    {"kv_dtype": "fp8", "batch_tokens": 2048, "memory_fraction": 0.8},
    {"kv_cache_bytes": 1 << 30, "quant": "gptq-int4"},
    {"quant": "nvfp4", "model": "nvidia/m-NVFP4"},
    {"speculative": (("moe_backend", "triton"),)},
)
MODELS = ("openai/gpt-oss-120b", "Qwen/Qwen3.6-27B-FP8", "MiniMaxAI/MiniMax-M2.7")


def every_candidate(engine, version, candidate):
    """Candidates of each kind that an engine supports."""
    drafts = {"draft": "org/d"}
    speculations = [{}, {"method": "nextn", "tokens": 5, "topk": 4, "beam_tokens": 8}]
    for method in METHODS[engine]:
        needs = drafts if method in ("eagle3", "dflash", "dflash2", "dspark", "draft") else {}
        speculations.append({"method": method, "tokens": 3, **needs})
        speculations.append({"method": method, "tokens": 3, "busy": 2, "busy_from": 3, **needs})
    speculations.append({"method": "dspark", "tokens": 5})
    kinds = itertools.product(
        SHAPES, speculations, SETTINGS, ("cuda", "cpu"), ("container", "process"), MODELS
    )
    for shape, speculation, settings, device, runtime, model in kinds:
        if "speculative" in settings and engine == "vllm" and Version(version) < Version("0.17"):
            continue  # rule mtp-draft-moe-backend follows `--moe-backend`, which came then
        yield candidate(
            engine,
            **{"model": model, **shape, **speculation, **settings},
            gguf=GgufFiles(model="m.gguf", mmproj="mmproj.gguf") if engine == "llama.cpp" else None,
            device=device,
            runtime=runtime,
            engine_version=version,
            image="org/i@sha256:1" if runtime == "container" else None,
        )


def test_nothing_that_can_be_asked_of_a_release_ends_in_a_flag_that_it_does_not_have(
    parser, candidate, context
):
    launched = 0
    for one in every_candidate(parser.engine, parser.version, candidate):
        try:
            argvs = list(lines(one, context))
        except EngineError:
            continue  # what the engine can not do is refused in words; its own tests say what
        for argv in argvs:
            told = after_the_program(argv)
            complaints = [*parser.complaints(told), *parser.speculation(told)]
            assert not complaints, f"{one}: {complaints}"
            launched += 1
    assert launched > (100 if parser.engine == "llama.cpp" else 500)  # it has one node and few methods


def test_every_engine_is_among_the_examples(ladders):
    assert {one.engine for ladder in ladders.values() for one in ladder} == {
        "vllm", "sglang", "trtllm", "llama.cpp", "custom"
    }  # fmt: skip


def test_an_unknown_speculative_option_would_be_found(parsers):
    first, *_, last = parsers("vllm")
    dflash = ("--speculative-config", '{"method":"dflash","odd":1}')
    assert list(first.speculation(dflash)) == ["odd is unknown", "dflash is no method"]
    assert list(last.speculation(dflash)) == ["odd is unknown"]


def test_a_flag_that_is_unknown_would_be_found(parsers):
    for parser in parsers("vllm"):
        assert list(parser.complaints(("--no-such", "4"))) == ["--no-such is unknown"]
        assert list(parser.complaints(("--headless", "4"))) == ["--headless 4: value missing or too many"]
        assert list(parser.complaints(("--kv-cache-dtype", "odd"))) == [
            "--kv-cache-dtype odd: not among the choices"
        ]
    for parser in parsers("sglang"):
        assert list(parser.complaints(("--tp", "2"))) == ["--tp is unknown"]


@pytest.mark.parametrize(
    ("engine", "flag"), [("vllm", "--decode-context-parallel-size"), ("sglang", "--dcp-size")]
)
def test_ranks_that_share_one_kv_cache(parsers, candidate, context, engine, flag):
    """Of the newest release: SGLang 0.5.12 has no such flag (rule sglang-dcp-absent)."""
    newest = parsers(engine)[-1].version
    shared, plain = (candidate(engine, nodes=4, dcp=dcp, engine_version=newest) for dcp in (4, 1))
    able = of_its_release(shared, parsers(engine))
    for argv in lines(shared, context):
        told = after_the_program(argv)
        assert told[told.index(flag) + 1] == "4"
        assert able
        assert not [list(parser.complaints(told)) for parser in able if list(parser.complaints(told))]
    assert not any(flag in argv for argv in lines(plain, context))

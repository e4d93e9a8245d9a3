"""The engines' own parsers, where an engine is installed in this environment. Opt-in: they take seconds to import.

A parser is asked in a process of its own, so that nothing of an engine stays in this one.
"""

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from parser_programs import DCP, DEEP, DRAFTS, FORKS, REGISTRIES, SGLANG, SGLANG_DEEP, SHIM, VLLM

import sparkfleet
from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.engines.tool_parsers import FAMILIES
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.place.context_split import context_split_fault

pytestmark = pytest.mark.integration
FLAGS = Path(sparkfleet.__file__).parent / "knowledge" / "engines" / "engine_flags"

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 64, "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "torch_dtype": "float32", "hidden_act": "silu", "eos_token_id": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def asked_vllm(tmp_path_factory):
    """As `asked`, of vLLM."""
    errors = tmp_path_factory.mktemp("vllm") / "errors"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([PYTHONS["vllm"], "-c", FORKS], text=True, env=ENV, **pipes) as forks:

        def asked_vllm(program, lines, **env):
            errors.write_text("")
            told = {
                "program": program,
                "lines": [list(line) for line in lines],
                "env": env,
                "errors": str(errors),
            }
            forks.stdin.write(json.dumps(told) + "\n")
            forks.stdin.flush()
            return result(iter(forks.stdout.readline, ""), errors)

        yield asked_vllm
        forks.stdin.close()


def result(lines, errors):
    """The result in the lines of a question, which end with `END` or with the process."""
    results = []
    for line in lines:
        if line.startswith("END"):
            break
        if line.startswith("RESULT "):
            results.append(line)
    assert results, errors.read_text()[-3000:]
    return json.loads(results[-1].removeprefix("RESULT "))


ENV = {
    "PATH": "/usr/bin:/bin",
    "HF_HUB_OFFLINE": "1",
    "HOME": "/nonexistent",
    "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
}


def asked(program, lines, **env):
    done = subprocess.run(
        [PYTHONS["sglang" if program in (SGLANG, SGLANG_DEEP) else "vllm"], "-c", program],
        input=json.dumps([list(line) for line in lines]),
        capture_output=True,
        text=True,
        check=False,
        env={**ENV, **env},
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, done.stderr[-3000:]
    return json.loads(results[-1].removeprefix("RESULT "))


SGLANG_ELSEWHERE = os.environ.get("SPARKFLEET_SGLANG_PYTHON")
PYTHONS = {"vllm": sys.executable, "sglang": SGLANG_ELSEWHERE or sys.executable}


def installed(name):
    there = importlib.util.find_spec(name) is not None or (name == "sglang" and SGLANG_ELSEWHERE)
    return pytest.mark.skipif(not there, reason=f"{name} is not installed here")


METHODS = {
    "vllm": ("none", "ngram", "mtp", "eagle3", "dflash", "dflash2", "dspark", "draft"),
    "sglang": ("none", "ngram", "nextn", "eagle3", "dflash", "dflash2", "dspark", "draft"),
}


@pytest.fixture
def lines(candidate, context):
    """Command lines of every method, of one rank and of two, as they come after the program."""

    def lines(engine, **fields):
        for method in METHODS[engine]:
            draft = {} if method in ("none", "ngram", "nextn", "mtp") else {"draft": "o/d"}
            tokens = {} if method == "none" else {"tokens": 3}
            for ranks in (1, 2):
                told = {
                    "nodes": ranks, "ep": ranks, "method": method, "memory_fraction": 0.5, "kv_dtype": "fp8",
                    "batch_tokens": 2048, "model": "Qwen/Qwen3.6-27B-FP8", "runtime": "container", "image": "i",
                }  # fmt: skip
                one = candidate(engine, **{**told, **draft, **tokens, **fields})
                for rank in range(ranks):
                    argv = engine_by_name(engine).launch(one, context(rank, ranks)).argv
                    yield ("--model", *argv[argv.index("serve") + 1 :]) if engine == "vllm" else argv[3:]

    return lines


@pytest.mark.full
@pytest.mark.xdist_group("vllm_parsers")
@installed("vllm")
def test_vllm_parses_every_line(asked_vllm, lines):
    """With SPARKFLEET_GOLDEN=write the flags of the release that is installed are written down."""
    version, *found = asked_vllm(VLLM, lines("vllm"))
    release = version.partition("+")[0]
    path = FLAGS / f"vllm-{release}.json"
    names = ("options", "without_value", "choices", "speculative_keys", "speculative_methods")
    if os.environ.get("SPARKFLEET_GOLDEN") == "write":
        source = "the engine's own parser, read option by option"
        told = {
            "engine": "vllm",
            "version": release,
            "source": source,
            **dict(zip(names, found, strict=True)),
        }
        path.write_text(json.dumps(told, indent=0) + "\n")
    if path.exists():
        told = json.loads(path.read_text())
        assert found == [told[name] for name in names]


@pytest.mark.xdist_group("vllm_parsers")
@installed("vllm")
def test_vllm_shares_a_kv_cache_on_the_conditions_that_plans_have(asked_vllm):
    """Its own checks for 500 models and splits, and its attention on SM121: rules vllm-dcp-sm120-sparse and others."""
    splits = itertools.product(
        (False, True), (8, 16, 24, 32, 64), (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 3, 4, 8)
    )
    models = [
        (latent, queries, heads, tp, dcp)
        for latent, queries, heads, tp, dcp in splits
        if queries % heads == queries % tp == 0 and (heads == 1 or not latent)
    ]

    def ours(latent, queries, heads, tp, dcp):
        kind, value = (LayerKind.MLA, 0) if latent else (LayerKind.FULL, 128)
        layers = LayerGroup(
            kind=kind, layers=2, query_heads=queries, kv_heads=heads, key_dim=128, value_dim=value
        )
        checkpoint = known_checkpoint("Qwen/Qwen3-8B").model_copy(update={"layers": (layers,)})
        return not context_split_fault(checkpoint, tp, dcp)

    taken, (dense, grouped, sparse, cpu) = asked_vllm(DCP, models)
    assert taken == [ours(*one) for one in models]
    assert 100 < sum(taken) < len(taken)
    assert (dense, grouped) == (True, True)
    assert (sparse, cpu) == (False, False), "the rule and the CPU's refusal are out of date"


@pytest.mark.xdist_group("vllm_parsers")
@installed("vllm")
def test_vllm_parses_the_flag_of_a_shared_kv_cache(asked_vllm, candidate, context):
    one = candidate("vllm", nodes=4, dcp=4, runtime="container", image="i")
    argv = engine_by_name("vllm").launch(one, context(1, 4)).argv
    line = ("--model", *argv[argv.index("serve") + 1 :])
    assert line[line.index("--decode-context-parallel-size") + 1] == "4"
    assert asked_vllm(VLLM, [line])


@pytest.mark.xdist_group("vllm_parsers")
@installed("vllm")
def test_vllm_registers_every_parser_of_a_family(asked_vllm):
    reasoning, tools = map(set, asked_vllm(REGISTRIES, ()))
    named = [by_engine["vllm"] for _, by_engine in FAMILIES if "vllm" in by_engine]
    assert {one.reasoning for one in named} - reasoning == {""}
    assert {one.tools for one in named} - tools <= {""}


def ordered(choices):
    """Choices of flags in one order: those of SGLang's `--sampling-backend` are a set, another one in each process."""
    return {flag: sorted(values, key=str) for flag, values in choices.items()}


@pytest.mark.opt_in
@pytest.mark.sglang
@installed("sglang")
def test_sglang_parses_every_line(lines):
    version, *found = asked(SGLANG, lines("sglang"))
    path = FLAGS / f"sglang-{version}.json"
    if path.exists():
        told = json.loads(path.read_text())
        assert [found[0], ordered(found[1])] == [told["options"], ordered(told["choices"])]


@pytest.mark.opt_in
@pytest.mark.sglang
@installed("sglang")
def test_sglang_accepts_the_parsed_arguments(lines, tmp_path):
    """Its deep validation, as if there were a GPU, for every method, of one rank and of two. Written for 0.5.23."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"torch_dtype": "bfloat16"}))
    told = [
        tuple(str(tmp_path) if word in ("/models/m", "o/d") else word for word in line)
        for line in lines("sglang")
    ]
    bogus = (*told[0], "--speculative-algorithm", "BOGUS")
    *found, wrong = asked(SGLANG_DEEP, [*told, bogus])
    algorithms = [None, "NGRAM", "EAGLE", "EAGLE3", "DFLASH", "DFLASH", "DSPARK", "STANDALONE"]
    window = [None, 4, 4, 4, 4, 4, 4, 4]
    assert found == [
        [ranks, ranks, algorithm, tokens, False]
        for algorithm, tokens in zip(algorithms, window, strict=True)
        for ranks in (1, 2, 2)
    ]
    assert "BOGUS" in wrong


@pytest.mark.xdist_group("vllm_parsers")
@installed("vllm")
def test_vllm_accepts_the_parsed_arguments(asked_vllm, candidate, context, tmp_path):
    """Its deep validation: the whole engine configuration is built, on the CPU, for a checkpoint without weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def line(ranks=1, rank=0, **fields):
        told = {
            "device": "cpu",
            "nodes": ranks,
            "runtime": "container",
            "image": "i",
            "context": 512,
            **fields,
        }
        one = engine_by_name("vllm").launch(
            candidate(**told), context(rank, ranks, model_path=str(tmp_path), leader="127.0.0.1")
        )
        return ("--model", *one.argv[one.argv.index(str(tmp_path)) :], "--skip-tokenizer-init")

    found = asked_vllm(
        DEEP,
        [
            line(),
            line(2, 0),
            line(2, 1),
            line(method="ngram", tokens=3),
            line(engine_args=("--attention-backend", "BOGUS")),
            line(method="draft", tokens=3, draft=str(tmp_path)),
        ],
        VLLM_CPU_OMP_THREADS_BIND="nobind",
    )
    assert found[:4] == [[1, "none"], [2, "none"], [2, "none"], [1, "ngram"]]
    assert isinstance(found[4], str)  # and so the others were really looked at
    assert found[5] == [1, "draft_model"]


def draft_config(architecture, **fields):
    """The config of a drafter of `CONFIG`, as the published ones of Qwen3.8-27B have it."""
    inner = {"mask_token_id": 3, "target_layer_ids": [0, 1], **fields.pop("dflash_config", {})}
    return {**CONFIG, "architectures": [architecture], "block_size": 8, "dflash_config": inner, **fields}


@pytest.mark.full  # half a minute of vLLM's imports and one configuration of each draft; the pin of vLLM decides it
@pytest.mark.xdist_group("vllm_parsers")
@installed("vllm")
def test_vllm_finds_the_class_of_a_draft_and_takes_both_depths(asked_vllm, candidate, context, tmp_path):
    """DFlash2 goes by DFlash's name and its own class; DSpark without a draft is the target's own, of DeepSeek-V4 alone."""
    classes = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "Qwen3DSparkModel"}
    markov = {"markov_rank": 8, "markov_head_type": "vanilla"}
    for name, text in {
        "m": CONFIG,
        **{
            name: draft_config(kind, **(markov if name == "dspark" else {})) for name, kind in classes.items()
        },
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(text))

    def line(method, tokens=7, **fields):
        told = {"device": "cpu", "runtime": "container", "image": "i", "context": 512, "concurrency": 8}
        one = candidate(method=method, tokens=tokens, draft=str(tmp_path / method), **told, **fields)
        model = str(tmp_path / "m")
        argv = engine_by_name("vllm").launch(one, context(model_path=model)).argv
        return ("--model", *argv[argv.index(model) :], "--skip-tokenizer-init")

    lines = [line("dflash"), line("dflash2"), line("dflash2", busy=5, busy_from=4), line("dspark")]
    found = asked_vllm(DRAFTS, lines, VLLM_CPU_OMP_THREADS_BIND="nobind")
    depths = [7, 7, 7, 5, 5, 5, 5, 5]
    assert [one[:4] for one in found] == [
        ["dflash", "DFlashDraftModel", 7, []],
        ["dflash", "DFlash2DraftModel", 7, []],
        ["dflash", "DFlash2DraftModel", 7, depths],
        ["dspark", "Qwen3DSparkModel", 7, []],
    ]
    runs = [one[4] for one in found]
    assert runs[0] == ""
    assert "Model Runner V1 does not support: DFlash candidate-head drafts" in runs[1], "docs/builtin.md"
    assert "Model Runner V1 does not support: dspark speculative decoding" in runs[3], "docs/builtin.md"


@pytest.mark.opt_in
@pytest.mark.sglang
@installed("sglang")
def test_sglang_takes_steps_by_load_for_chains(candidate, context, tmp_path):
    """The file is read, and sizes the buffers for the most steps in it."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"torch_dtype": "bfloat16"}))
    chain = {"method": "nextn", "tokens": 4, "beam_tokens": 5, "busy": 2, "busy_from": 3}
    one = engine_by_name("sglang").launch(
        candidate("sglang", runtime="process", engine_version="0.5.23", **chain),
        context(model_path=str(tmp_path), files_dir=str(tmp_path)),
    )
    for file in one.files:
        (tmp_path / file.name).write_text(file.text)
    (found,) = asked(SGLANG_DEEP, [(*one.argv[3:], "--speculative-draft-model-path", str(tmp_path))])
    assert found == [1, 1, "EAGLE", 5, True]


@pytest.mark.opt_in
@pytest.mark.sglang
@installed("sglang")
def test_sglang_finds_dsparks_draft_in_the_target(candidate, context, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"dspark_block_size": 5}))
    one = engine_by_name("sglang").launch(
        candidate(
            "sglang", runtime="container", image="i", engine_version="0.5.23", method="dspark", tokens=5
        ),
        context(model_path=str(tmp_path)),
    )
    (found,) = asked(SGLANG_DEEP, [one.argv[3:]])
    assert found == [1, 1, "DSPARK", 6, False]


@pytest.mark.full  # its own 15 s; two nodes that share experts prove it, too
@installed("vllm")
def test_on_cpus_a_rank_finds_its_vllm_and_its_own_experts(candidate, context, tmp_path):
    """The second of two ranks holds experts 2 and 3: their rows are 0 and 1, and the others weigh nothing."""
    one = candidate(nodes=2, ep=2, device="cpu", engine_version="0.32.0+cpu")
    for file in engine_by_name("vllm").launch(one, context(1, 2)).files:
        path = tmp_path / file.name
        path.parent.mkdir(exist_ok=True)
        path.write_text(file.text)
    version, mapped, whole = asked(SHIM, [], PYTHONPATH=str(tmp_path))
    assert version == "0.32.0+cpu"
    assert mapped["ids"] == [[0, 1], [0, 0]]
    assert mapped["weights"] == [[0.0, pytest.approx(0.3)], [pytest.approx(0.6), 0.0]]
    assert mapped["type"] == whole["type"] == "torch.int32"
    assert whole["ids"] == [[0, 3], [2, 1]]

"""Cells of rows as people write them: a spelling never changes a number, and an unreadable cell is declined or reported."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkfleet.accuracy.accuracy import predict
from sparkfleet.accuracy.aliases import engine_in, format_of, method_in, number, quant_label
from sparkfleet.accuracy.cells import amount
from sparkfleet.accuracy.models import Declined, plain
from sparkfleet.accuracy.published import is_upper_bound, run_of
from sparkfleet.accuracy.rows import case_of, read_rows, source_of
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.models.published_checkpoints import load_published, published
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.prediction import Band


def row(**given: str) -> dict[str, str]:
    text = {"nodes": "1", "tp": "1", "concurrency": "1", "model": "Qwen/Qwen3.6-27B-FP8", "quant": "fp8"}
    return text | {"engine": "vllm", "spec_method": "none", "prompt_tokens": "1024"} | given


@cache
def packaged() -> list[dict[str, str]]:
    return read_rows(Path(str(files("sparkfleet.knowledge.measurements").joinpath("benchmarks.csv"))))


def rates(cells: dict[str, str]) -> dict[str, Band | None] | None:
    """Predictions, or None if the row is declined."""
    try:
        return predict(case_of(cells, architectures()), factors())
    except Declined:
        return None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,024", 1024),
        ("1 024", 1024),
        ("~2048", 2048),
        ("2K", 2048),
        ("1.5k", 1536),
        ("c8", 8),
        ("C = 8", 8),
        ("two", 2),
        ("8 (each)", 8),
        ("4-8", None),
        ("-1", None),
        ("1,5", None),
        ("nan", None),
        ("1e400", None),
        ("", None),
        ("8 apples", None),
    ],
)
def test_numbers(text: str, value: float | None) -> None:
    assert number(text, {"k": 1024}, "c") == value


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vLLM 0.11", "vllm"),
        ("TensorRT-LLM", "trtllm"),
        ("trt-llm", "trtllm"),
        ("llama-cpp", "llama.cpp"),
        ("llama.cpp b7941", "llama.cpp"),
        ("SGLang", "sglang"),
        ("sparkinfer/vllm", "vllm"),
        ("ollama/llama.cpp", "ollama"),
        ("sgl", "sglang"),
        ("llamafile", "llama.cpp"),
        ("foo", None),
    ],
)
def test_engines(text: str, name: str | None) -> None:
    assert engine_in(text) == name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mtp k=3", ("mtp", 3)),
        ("MTP-3", ("mtp", 3)),
        ("mtp 3/1/4", ("mtp", 3)),
        ("qwen3_next_mtp", ("mtp", None)),
        ("NEXTN", ("mtp", None)),
        ("NEXTN 1 nodes", ("mtp", None)),
        ("EAGLE-3", ("eagle3", None)),
        ("DFlash2-7 / 2 seqs", ("dflash2", 7)),
        ("DFlash 2x Spark", ("dflash", None)),
        ("DSpark b7", ("dspark", 7)),
        ("draft model", ("draft", None)),
        ("no spec", ("none", None)),
        ("medusa", None),
        ("p-eagle", None),
        ("mtp + ngram", None),
        ("EAGLE/MTP", ("mtp", None)),
        ("D-Flash k=3", ("dflash", 3)),
        ("D-Spark", ("dspark", None)),
        ("2x DGX Spark", None),
    ],
)
def test_methods(text: str, found: tuple[str, int | None] | None) -> None:
    assert method_in(text) == found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bfloat16", "bf16"),
        ("float16", "bf16"),
        ("16-bit", "bf16"),
        ("AutoRound", "int4"),
        ("AutoRound int4", "int4"),
        ("INT-4", "int4"),
        ("int4-int8mix", "int4-int8"),
        ("GGUF UD-Q5_K_XL", "q5_k"),
        ("q4_k_m/q5_k_m", "q4_k"),
        ("NV-FP4", "nvfp4"),
        ("w4a16 nvfp4", "nvfp4"),
        ("W4A4", "nvfp4"),
        ("W4A16", "int4"),
        ("w8a8", "fp8"),
        ("mxfp4-experts+mxfp8", "fp8+mxfp4"),
        ("GPTQ-Int8", "fp8"),
        ("awq 8-bit", "fp8"),
        ("int4 + fp8", "int4-int8"),
        ("hybrid int4+fp8", "int4-int8"),
        ("fp8+nvfp4", "nvfp4"),
        ("secret", None),
    ],
)
def test_formats(text: str, name: str | None) -> None:
    assert format_of(quant_label(text)) == name


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"spec_method": "-"}, "speculation not given: none"),
        ({"spec_method": "n/a"}, "speculation not given: none"),
        ({"concurrency": ""}, "concurrency not given: 1"),
        ({"nodes": "two", "tp": ""}, "tp not given: nodes"),
        ({"nodes": ""}, "nodes not given: 1"),
        ({"engine": "lmdeploy"}, "no measurements of engine lmdeploy: as vllm"),
        ({"quant": "w4a4"}, "quantisation w4a4: nvfp4"),
        ({"quant": "none"}, "not quantised further: as published (bf16)"),
        ({"kv_dtype": "turbo"}, "kv_dtype not known: turbo: bf16"),
        ({"model": "Somebody-8B"}, "shapes not known: guessed from its size (dense)"),
        ({"model": "Somebody-30B-A3B"}, "shapes not known: guessed from its size (experts)"),
        ({"model": "google/gemma-2-27b-it"}, "shapes not known: guessed from its size (dense)"),
        ({"model": "Somebody-27B"}, "shapes not known: those of Qwen/Qwen3.5-27B, by its size"),
        ({"nodes": "2", "tp": "2", "link": "thunderbolt"}, "link not known: thunderbolt: qsfp200"),
        ({"spec_method": "mtp-2", "spec_tokens": "5"}, "draft tokens given twice: those of their column"),
    ],
)
def test_assumptions_are_reported(given: dict[str, str], what: str) -> None:
    assert what in case_of(row(**given), architectures()).assumed


@pytest.mark.parametrize(
    ("tag", "model"),
    [
        ("gpt-oss:120b", "openai/gpt-oss-120b"),
        ("qwen3-coder:30b", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
        ("llama3.1:8b", "meta-llama/Llama-3.1-8B-Instruct"),
        ("gemma4:31b", "google/gemma-4-31B-it"),
        ("unsloth/gpt-oss-20b-GGUF:Q4_K_M", "openai/gpt-oss-20b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
        ("zai-org/GLM-4.6-FP8", "zai-org/GLM-4.7"),
    ],
)
def test_tags_and_siblings_have_the_shapes_of_their_model(tag: str, model: str) -> None:
    one, other = (case_of(row(model=name), architectures()).setup.shape for name in (tag, model))
    assert (one.family, one.parts, one.basis) == (other.family, other.parts, "config.json")


@pytest.mark.parametrize("text", ["no spec", "none", "None", "false", "off", "-", "n/a", ""])
def test_no_speculation(text: str) -> None:
    assert case_of(row(spec_method=text), architectures()).setup.method == "none"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tp": "8"}, "tp x pp is more than nodes"),
        ({"nodes": "4", "tp": "2"}, "tp x pp is less than nodes"),
        ({"concurrency": "4-8"}, "concurrency is no plausible number: 4-8"),
        ({"prompt_tokens": "-5"}, "prompt_tokens is no plausible number: -5"),
        ({"nodes": "1.5"}, "nodes is no plausible number: 1.5"),
        ({"engine": "foo"}, "engine not known: foo"),
        ({"quant": "-"}, "quantisation not given"),
        ({"spec_method": "medusa"}, "method of speculation not known: medusa"),
        ({"model": "x", "params_total_b": "1e-9"}, "model not known and its size is not plausible"),
        (
            {"model": "x", "params_total_b": "8", "params_active_b": "-1"},
            "params_active_b is no plausible number: -1",
        ),
        ({"nodes": "2", "tp": "2", "link": "10GbE"}, "link not known: 10gbe"),
        ({"quant": "exl3-0bpw"}, "quantisation not known: exl3-0bpw"),
    ],
)
def test_unreadable_cells_are_declined(given: dict[str, str], reason: str) -> None:
    with pytest.raises(Declined) as found:
        case_of(row(**given), architectures())
    assert str(found.value) == reason


@pytest.mark.parametrize(
    ("model", "quant", "format_name"),
    [
        ("openai/gpt-oss-120b", "none", "mxfp4"),
        ("Qwen/Qwen3.6-27B", "none", "bf16"),
        ("Ministral 3 8B Instruct 2512", "bf16", "fp8"),
        ("DeepSeek V4 Flash", "FP8", "fp8+mxfp4"),
    ],
)
def test_weights_without_a_quantisation_are_as_published(model: str, quant: str, format_name: str) -> None:
    assert case_of(row(model=model, quant=quant), architectures()).setup.format == format_name


@pytest.mark.parametrize(
    "model", ["Qwen/Qwen3.6-27B-FP8", "qwen3.6-27b-fp8", "Qwen 3.6 27B FP8", "Qwen3.6_27B_FP8"]
)
def test_a_kernel_does_not_depend_on_the_spelling(model: str) -> None:
    cells = row(model=model, engine_version_or_image="vllm/vllm-openai:v0.26-cu129")
    assert case_of(cells, architectures()).setup.kernel == "marlin"


def _name(text: str, change: object) -> str:
    """Change the name of a model behind its owner."""
    owner, slash, name = text.rpartition("/")
    return text if " " in owner else f"{owner}{slash}{change(name)}"  # type: ignore[operator]


def _thousands(text: str) -> str:
    return f"{int(text):,}" if text.isdigit() else text


NUMERIC = ("prompt_tokens", "depth", "gen_tokens", "concurrency")
WORDED = ("model", "quant", "engine", "spec_method", "kv_dtype", "link")


def _is_built(model):
    return any(plain(id_) == plain(model) for id_ in load_published())


RESPELLED = {
    "upper": lambda r: {c: r[c].upper() for c in WORDED},
    "lower": lambda r: {c: r[c].lower() for c in WORDED},
    "around": lambda r: {c: f" {r[c]} " for c in (*WORDED, *NUMERIC, "nodes", "tp", "pp", "spec_tokens")},
    # The bits of some are known by the whole name: of an EXL3 build, which is a branch, with a blank in it.
    "blanks": lambda r: {
        "model": r["model"]
        if published(r["model"])
        else _name(r["model"], lambda name: name.replace("-", " "))
    },
    # Of models with published builds the owner is what their bits are known by.
    "no owner": lambda r: {
        "model": r["model"] if " " in r["model"] or _is_built(r["model"]) else r["model"].rpartition("/")[2]
    },
    "thousands": lambda r: {c: _thousands(r[c]) for c in NUMERIC},
    "about": lambda r: {c: f"~{r[c]}" if r[c].strip() else "" for c in NUMERIC},
    "letters": lambda r: {
        "concurrency": r["concurrency"].strip() and f"c{r['concurrency'].strip()}",
        "nodes": r["nodes"] + "x",
    },
    "none": lambda r: {"spec_method": "no spec" if r["spec_method"].strip() == "none" else r["spec_method"]},
    "method": lambda r: {
        "spec_method": r["spec_method"] + (f" k={r['spec_tokens']}" if r["spec_tokens"].strip() else "")
    },
    "formats": lambda r: {"quant": re.sub(r"^nvfp4", "NV-FP4", re.sub(r"^bf16", "bfloat16", r["quant"]))},
}


@settings(max_examples=3 * settings.default.max_examples)
@given(st.data(), st.lists(st.sampled_from(sorted(RESPELLED)), min_size=1, max_size=3, unique=True))
def test_spelling_never_changes_a_prediction(data: st.DataObject, spellings: list[str]) -> None:
    plain = data.draw(st.sampled_from(packaged()))
    respelled = dict(plain)
    for name in spellings:
        respelled |= RESPELLED[name](respelled)
    assert rates(respelled) == rates(plain)


ODD = (
    "0",
    "-1",
    "1e308",
    "999999999999",
    "nan",
    "-inf",
    "1e-9",
    "½",
    "１２",
    "0x10",
    "c4",
    "2x",
    "4-8",
    "=1+1",
    "rate=1.2.3 rps",
)
LONG = (
    "a" * 5000,
    "9" * 5000,
    "completed=" + "9" * 5000,
    "k=" + "9" * 5000,
    "exl3-" + "9" * 400 + "bpw",
    "7" * 400 + "b",
)


@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.data(),
    st.sampled_from(sorted(packaged()[0])),
    st.one_of(st.sampled_from(ODD + LONG), st.text(max_size=30)),
)
def test_garbage_is_predicted_or_declined(data: st.DataObject, column: str, text: str) -> None:
    found = rates(data.draw(st.sampled_from(packaged())) | {column: text})
    assert found is None or all(
        b is None or 0 < b.low <= b.mid <= b.high < float("inf") for b in found.values()
    )


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", None),
        ("0.85", 0.85),
        ("0.9 (default)", 0.9),
        ("90%", 0.9),
        ("90 %", 0.9),
        ("--gpu-memory-utilization 0.85", 0.85),
        ("gpu_memory_utilization=0.85", 0.85),
        (".85", 0.85),
        ("auto", None),
    ],
)
def test_shares_of_the_memory_as_people_write_them(text: str, share: float | None) -> None:
    assert amount({"mem_util_flag": text}, "mem_util_flag") == (share and pytest.approx(share))


@pytest.mark.parametrize("text", ["1.5", "90", "-0.9", "most", "0.8-0.9", "9" * 400])
def test_an_invalid_share_of_the_memory_is_declined(text: str) -> None:
    with pytest.raises(Declined, match="mem_util_flag is no plausible number"):
        case_of(row(mem_util_flag=text), architectures())


def test_more_requests_than_the_pool_holds_wait() -> None:
    crowd = {"concurrency": "64", "prompt_tokens": "32768", "gen_tokens": "512"}
    small, large, unsaid, nothing = (
        case_of(row(**crowd, mem_util_flag=share), architectures()) for share in ("0.5", "0.9", "", "0")
    )
    assert small.setup.max_running is not None
    assert large.setup.max_running is not None
    assert small.setup.max_running < large.setup.max_running < 64
    assert unsaid.setup.max_running == nothing.setup.max_running == large.setup.max_running
    assert "mem_util_flag not given: 0.9" in unsaid.assumed
    assert "mem_util_flag not given: 0.9" not in large.assumed


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("github:a/b:results/one.md", "a/b"),
        ("https://github.com/a/b/issues/7", "a/b"),
        ("https://huggingface.co/a/b/discussions/1", "a/b"),
        ("https://huggingface.co/datasets/a/b", "a/b"),
        ("https://conselara.dev/notes/benchmarks/", "conselara.dev"),
    ],
)
def test_a_repository_is_a_source_and_a_page_is_its_host(text: str, source: str) -> None:
    assert source_of({"source_url_or_repo_path": text}) == source


def test_a_driver_that_lost_two_thirds_of_the_speed_is_no_measure_of_a_model() -> None:
    with pytest.raises(Declined, match="impaired"):
        case_of(row(notes="driver regression", decode_tps_aggregate="11.3"), architectures())
    after = [one for one in packaged() if "b0617" <= one["id"] <= "b0621"]
    assert len(after) == 5
    assert [rates(one) for one in after] == [None] * 5


def test_a_node_at_29_percent_of_its_clock_is_no_measure_of_a_model() -> None:
    """WeZZard's scripts/check-clocks.sh: all of his REPORT.md; BASELINE.md has figures of others."""
    of_source = [one for one in packaged() if "WeZZard/dgx-spark-bench" in one["source_url_or_repo_path"]]
    slow = [one for one in of_source if "REPORT.md" in one["source_url_or_repo_path"]]
    assert len(slow) == 53
    assert [rates(one) for one in slow] == [None] * 53
    assert None not in [rates(one) for one in of_source if one not in slow]


def test_a_warm_up_in_the_sample_leaves_the_decode_rate() -> None:
    cold = {"notes": "llama-benchy; warm-up in the sample", "ttft_ms": "590", "prefill_tps": "2015"}
    case = case_of(row(**cold, decode_tps_per_request="24"), architectures())
    assert dict(case.measured) == {"decode_tps_per_request": 24.0}
    assert sum("warm-up in the sample" in one["notes"] for one in packaged()) == 21


def test_prompts_of_a_harness_that_counted_with_another_tokenizer_have_the_servers_length() -> None:
    """llama-benchy in GPT-2's tokens: rate × est_ppt of Gemma-4-26B's 25,000 in 05-big-context.md are 22,787."""
    ours = "djangodevreng/dgx-spark-benchmarks:results/gemma-4/gemma-4-26b-a4b-it/bf16-v23/05-big-context.md"
    sizes = {int(one["prompt_tokens"]) for one in packaged() if ours in one["source_url_or_repo_path"]}
    assert max(sizes) == pytest.approx(3.09806 * 7355.28, rel=0.01)


@pytest.mark.parametrize(
    ("source", "sent"),
    [  # (prompt, answer, window, requests in all, chunk) of the row with the most requests at once
        ("jschmied/dgx-spark-setup-guide:appendix/gb10-nvfp4", (12800, 512, "closed", 36, 16384)),
        ("MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark:docs/", (32768, 512, "served", None, 2048)),
        ("tonyd2wild/MiMo-V2.5-Omni-3x-DGX-Spark-TP-3-MTP", (1202, 304, "closed", 12, 2048)),
        ("jvr0x/dgx-spark-bench:results/qwen3.6-27b-nvfp4-nvidia", (1024, 256, "closed", None, 8192)),
    ],
)
def test_rows_have_what_the_harness_of_their_source_sends(source: str, sent: tuple[object, ...]) -> None:
    rows = [one for one in packaged() if source in one["source_url_or_repo_path"] and one["prompt_tokens"]]
    most = max(rows, key=lambda one: (int(one["concurrency"]), int(one["prompt_tokens"])))
    case = case_of(most, architectures())
    load = case.workload
    assert (load.prompt, load.generate, load.window, load.requests, case.setup.chunk) == sent


def test_only_runs_whose_page_names_eager_mode_are_without_graphs() -> None:
    """kubis.ai lists `--enforce-eager` among the flags of gpt-oss-120b alone."""
    of_source = [one for one in packaged() if "//kubis.ai/" in one["source_url_or_repo_path"]]
    eager = {one["model"] for one in of_source if case_of(one, architectures()).setup.eager}
    assert len({one["model"] for one in of_source}) == 3
    assert eager == {"openai/gpt-oss-120b"}


def test_a_rate_that_is_another_one_divided_is_not_counted_twice() -> None:
    found = [one for one in packaged() if "MiMo-V2.5-Omni-3x-DGX-Spark" in one["source_url_or_repo_path"]]
    assert len(found) == 14
    assert {metric for one in found for metric, _ in case_of(one, architectures()).measured} == {
        "decode_tps_aggregate"
    }


def test_prompts_in_a_prefix_cache_are_no_measure_of_a_prefill() -> None:
    (again,) = (
        one
        for one in packaged()
        if "warm2" in one["source_url_or_repo_path"] and one["depth"] == "" and one["prompt_tokens"] == "2270"
    )
    assert "ttft_ms" not in dict(case_of(again, architectures()).measured)


def test_all_figures_of_a_counting_task_are_upper_bounds() -> None:
    issue = "https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/28"
    cases = [case_of(row, architectures()) for row in packaged() if row["source_url_or_repo_path"] == issue]
    assert [case.setup.k for case in cases] == [0, 1, 2, 3, 4, 4, 4]
    assert all(is_upper_bound(case) for case in cases if case.setup.k)


@pytest.mark.parametrize(
    ("image", "gigabytes"),
    [("0.28.0", 5.0), ("lmsysorg/sglang:spark", 3.5), ("vllm-node-mxfp4 (0.1.dev12777)", 2.7)],
)
def test_a_build_that_quantises_further_reads_less_per_token(image: str, gigabytes: float) -> None:
    """Of gpt-oss-120b: 1.90 GB of experts, and 0.955 + 0.579 billion weights of attention and head."""
    cells = row(model="openai/gpt-oss-120b", quant="mxfp4", engine_version_or_image=image)
    parts = case_of(cells, architectures()).setup.shape.parts
    read = sum(part.active * part.bits / 8 for part in parts if part.kind in ("attention", "head", "experts"))
    assert read == pytest.approx(gigabytes * 1e9, rel=0.02)


def test_other_formats_on_such_a_build_keep_their_bits() -> None:
    plain_bits, built_bits = (
        [part.bits for part in case_of(row(engine_version_or_image=image), architectures()).setup.shape.parts]
        for image in ("0.28.0", "vllm-node-mxfp4")
    )
    assert plain_bits == built_bits


def test_a_separate_mtp_drafter_has_its_published_size() -> None:
    """Rows do not name it; their target does."""
    gemma, qwen = (
        case_of(row(model=name, spec_method="mtp", spec_tokens="3"), architectures())
        for name in ("nvidia/Gemma-4-31B-IT-NVFP4", "Qwen/Qwen3.6-27B")
    )
    assert gemma.setup.draft_bytes == pytest.approx(0.97e9)
    assert qwen.setup.draft_bytes is None


class TestSharedKv:
    def test_a_row_with_it_is_another_setup(self) -> None:
        cells = row(nodes="4", tp="4", decode_tps_per_request="20", engine_version_or_image="fork DCP2")
        assert case_of(cells, architectures()).setup.dcp == 2
        assert case_of(cells | {"engine_version_or_image": "0.27"}, architectures()).setup.dcp == 1
        assert case_of(cells | {"notes": "dcp=4"}, architectures()).setup.dcp == 2, "the build is read first"

    def test_one_that_cannot_be_is_declined(self) -> None:
        with pytest.raises(Declined, match="DCP does not divide tp"):
            case_of(row(nodes="4", tp="4", notes="dcp=3"), architectures())

    def test_it_counts_for_no_decision(self) -> None:
        plain, shared = (
            case_of(row(nodes="4", tp="4", decode_tps_per_request="20", notes=notes), architectures())
            for notes in ("", "dcp=4")
        )
        assert run_of(plain) is not None
        assert run_of(shared) is None

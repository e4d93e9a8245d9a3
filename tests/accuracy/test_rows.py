"""Cells of rows as people write them: a spelling never changes a number, and an unreadable cell is declined or reported."""

from __future__ import annotations

import re

import pytest
from accuracy_rows import packaged, rates, row
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkfleet.accuracy.cells import amount
from sparkfleet.accuracy.models import Declined, plain
from sparkfleet.accuracy.published import run_of
from sparkfleet.accuracy.rows import case_of, source_of
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.models.published_checkpoints import load_published, published


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

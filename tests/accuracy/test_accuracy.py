"""The accuracy report: rows are read as what was run, never as what was measured, and hostile files get a clear error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.accuracy import accuracy
from sparkfleet.accuracy.models import Declined, Stored, find_shape
from sparkfleet.accuracy.rows import METRICS, case_of, read_rows, source_of
from sparkfleet.errors import SpecError
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.model_shape import ModelShape

PACKAGED = Path(accuracy.__file__).parents[1] / "knowledge" / "measurements" / "benchmarks.csv"
HEADER = (
    "id,source_url_or_repo_path,date,nodes,link,model,params_total_b,params_active_b,architecture_notes,quant,weights_gb,engine,"
    "engine_version_or_image,tp,pp,ep,spec_method,spec_tokens,accept_len_or_rate,prompt_tokens,depth,gen_tokens,concurrency,"
    "ttft_ms,prefill_tps,decode_tps_per_request,decode_tps_aggregate,kv_dtype,mem_util_flag,max_model_len,peak_mem_gb,startup_s,notes"
)


def row(**given: str) -> dict[str, str]:
    base = dict.fromkeys(HEADER.split(","), "")
    base |= {
        "id": "b1",
        "source_url_or_repo_path": "github:somebody/bench:README.md",
        "nodes": "1",
        "tp": "1",
        "concurrency": "1",
    }
    base |= {
        "model": "Qwen/Qwen3.6-27B-FP8",
        "quant": "fp8",
        "engine": "vllm",
        "spec_method": "none",
        "prompt_tokens": "1024",
    }
    return base | given


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    lines = [HEADER, *(",".join(r[c] for c in HEADER.split(",")) for r in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_row_becomes_a_case() -> None:
    case = case_of(
        row(
            nodes="2",
            tp="2",
            link="qsfp200",
            spec_method="nextn",
            spec_tokens="5",
            kv_dtype="fp8",
            concurrency="8",
            engine="sglang",
            gen_tokens="128",
            notes="coding prompts; max-running-requests 4; enforce-eager",
        ),
        architectures(),
    )
    assert (case.setup.engine, case.setup.tp, case.setup.method, case.setup.k) == ("sglang", 2, "mtp", 5)
    assert (case.setup.kv_bytes, case.setup.max_running, case.setup.eager) == (1.0, 4, True)
    assert (case.workload.prompt, case.workload.generate, case.workload.concurrency) == (1024, 128, 8)
    assert case.workload.content == "code"
    assert case.setup.link is not None
    assert case.source == "somebody/bench"
    assert case.setup.shape.active == pytest.approx(25.6e9, rel=0.01)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"quant": ""}, "quantisation not given"),
        ({"quant": "secret-format"}, "quantisation not known: secret-format"),
        ({"model": "Somebody-Model"}, "model not known and its size not given"),
        ({"model": "x", "params_total_b": "200", "architecture_notes": "moe"}, "active parameters not given"),
        ({"notes": "NOT_MEASURED: estimate"}, "estimate, not a measurement"),
    ],
)
def test_unpredictable_rows_are_declined_with_a_reason(given: dict[str, str], reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        case_of(row(**given), architectures())


@pytest.mark.parametrize(
    ("notes", "window"),
    [
        ("llama-batched-bench", "decode"),
        ("aggregate is served rate", "served"),
        ("closed-loop harness; agg = served output rate", "closed"),
        ("llama-benchy 0.4", "burst"),
        ("", "steady"),
    ],
)
def test_the_window_of_an_aggregate(notes: str, window: str) -> None:
    assert case_of(row(notes=notes), architectures()).workload.window == window


@pytest.mark.parametrize(
    ("text", "k", "tokens"),
    [
        ("3.2-3.6 of 4", "3", 3.4),
        ("82%, 5.1", "5", 5.1),
        ("66.3% (81.2/51.5 per position)", "2", 2.326),
        ("0.394, 3.76 tok/step", "7", 3.76),
        ("0.4", "7", 3.8),
        ("60% (501/831), ~1.8 accepted/step", "3", 2.8),
        ("up to 4.88", "5", None),
        ("61%", "", None),
        ("", "3", None),
    ],
)
def test_tokens_of_a_step_for_fitting(text: str, k: str, tokens: float | None) -> None:
    case = case_of(row(spec_method="mtp", spec_tokens=k, accept_len_or_rate=text), architectures())
    assert case.yielded == (None if tokens is None else pytest.approx(tokens))


@pytest.mark.parametrize(
    ("given", "chunk"),
    [
        ({}, 2048),
        ({"notes": "max-num-batched-tokens 8192"}, 8192),
        ({"engine": "sglang"}, 8192),
        ({"engine": "llama.cpp"}, 2048),
    ],
)
def test_tokens_of_a_chunk(given: dict[str, str], chunk: int) -> None:
    assert case_of(row(**given), architectures()).setup.chunk == chunk


def test_decoding_is_not_code() -> None:
    assert (
        case_of(row(notes="decode_tps_per_request: published as range"), architectures()).workload.content
        == "mixed"
    )


@pytest.mark.parametrize(
    ("notes", "content"),
    [
        ("2000-word narrative; temp 0", "prose"),
        ("real agent session", "agent"),
        ("r0b0bench concurrency lane", "structured"),
        ("spark-arena run of this config", "book"),
        ("c4 ladder", "mixed"),
    ],
)
def test_kinds_of_text(notes: str, content: str) -> None:
    assert case_of(row(notes=notes), architectures()).workload.content == content


def test_deepseek_v4_in_fp8_has_experts_in_fp4() -> None:
    case = case_of(row(model="deepseek-ai/DeepSeek-V4-Flash", quant="fp8"), architectures())
    assert case.setup.format == "fp8+mxfp4"


def test_other_configs_are_beside_the_packaged_ones(tmp_path: Path) -> None:
    rows = write(
        tmp_path / "rows.csv", [row(decode_tps_per_request="7.8"), row(decode_tps_per_request="x", model="Y")]
    )
    configs = tmp_path / "configs.json"
    configs.write_text("{}", encoding="utf-8")
    assert accuracy.compare_rows(rows, configs).scored == accuracy.compare_rows(rows).scored != ()


@given(
    st.fixed_dictionaries(
        {m: st.floats(0.001, 1e6).map(str) for m in METRICS}
        | {
            "accept_len_or_rate": st.sampled_from(["", "3.2", "61 %"]),
            "peak_mem_gb": st.sampled_from(["", "99"]),
        }
    )
)
def test_predictions_do_not_use_measured_columns(measured: dict[str, str]) -> None:
    plain = row(spec_method="mtp", spec_tokens="3")
    expected = accuracy.predict(case_of(plain, architectures()), factors())
    assert accuracy.predict(case_of(plain | measured, architectures()), factors()) == expected


@given(st.dictionaries(st.sampled_from(HEADER.split(",")), st.text(max_size=30), max_size=12))
def test_any_row_is_a_case_or_declined(given: dict[str, str]) -> None:
    try:
        case = case_of(row(**given), architectures())
    except Declined:
        return
    assert accuracy.predict(case, factors())["decode_tps_per_request"] is not None


def test_the_report_has_the_promised_form(tmp_path: Path) -> None:
    rows = [
        row(decode_tps_per_request="8.0", ttft_ms="1100", prefill_tps="930"),
        row(decode_tps_per_request="22.6", spec_method="nextn", spec_tokens="5"),
        row(decode_tps_aggregate="7.8", quant="odd"),
    ]
    report = accuracy.compare_rows(write(tmp_path / "rows.csv", rows))
    body = json.loads(report.json())
    assert body["version"] == 1
    assert set(body) == {"version", "metrics", "declined", "assumed", "undecided", "head_to_heads"}
    assert set(body["metrics"]) == set(METRICS)
    assert set(body["metrics"]["ttft_ms"]["none"]) == {"rows", "predicted", "median_ape", "p90_ape"}
    assert body["metrics"]["decode_tps_per_request"]["none"]["predicted"] == 1
    assert body["metrics"]["decode_tps_aggregate"]["none"] == {
        "rows": 1,
        "predicted": 0,
        "median_ape": None,
        "p90_ape": None,
    }
    assert body["declined"] == {"quantisation not known: odd": 1}
    assert body["assumed"]["answer length not given: 256"] == 2
    assert "declined" in report.text()


def test_a_config_json_as_it_lies_beside_weights_is_the_same_as_its_summary() -> None:
    shapes = {
        "hidden_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    }
    shapes |= {"head_dim": 64, "intermediate_size": 2880, "vocab_size": 201088, "sliding_window": 128}
    summary = {"num_experts": 128, "num_experts_per_tok": 4}
    summary["layer_type_counts"] = {"sliding_attention": 18, "full_attention": 18}
    raw = {"num_local_experts": 128, "experts_per_token": 4}
    raw["layer_types"] = ["sliding_attention", "full_attention"] * 18
    shapes["model_type"] = "gpt_oss"
    wanted = _shapes(shapes | summary)
    assert _shapes(shapes | raw) == wanted
    with_a_tower = _shapes({"vision_config": {}, "text_config": shapes | raw})
    assert with_a_tower == wanted.model_copy(update={"vision": True})
    assert wanted.params == pytest.approx(117e9, rel=0.01)


def _shapes(config: dict[str, object]) -> ModelShape:
    return find_shape("a/b", {"a/b": config}, Stored("bf16"))


def test_medians_of_groups_do_not_pool_metrics(tmp_path: Path) -> None:
    rows = [row(decode_tps_per_request="8.0"), row(ttft_ms="11000", prefill_tps="930")]
    text = accuracy.compare_rows(write(tmp_path / "rows.csv", rows)).text()
    for title in ("format", "nodes", "speculation", "source"):
        for metric in ("decode_tps_per_request", "prefill_tps", "ttft_ms"):
            head, *block = text.split(f"{metric} by {title}")[1].split("\n")
            assert head.split() == ["rows", "median", "p90", "in", "band"]
            assert block[0].split()[1] == "1", block[0]
        assert f"decode_tps_aggregate by {title}" not in text


def test_impossible_figures_and_the_errors_of_the_factors_are_listed(tmp_path: Path) -> None:
    report = accuracy.compare_rows(write(tmp_path / "rows.csv", [row(decode_tps_per_request="30.4")]))
    assert len(report.impossible) == 1
    assert "the machines have 1 × 273 GB/s" in report.impossible[0]
    assert report.impossible[0] in report.text()
    assert report.validation == factors().validation
    shares = report.validation["sources left out, share inside the 80 % bands"]
    assert 0.75 <= shares["decode/spec"] <= 0.9
    assert "factors alone, sources left out, median of rows" in report.text()


def test_a_missing_prompt_declines_its_times_only(tmp_path: Path) -> None:
    report = accuracy.compare_rows(
        write(tmp_path / "rows.csv", [row(prompt_tokens="", ttft_ms="1", decode_tps_per_request="8")])
    )
    assert report.metrics["ttft_ms"]["none"].predicted == 0
    assert report.metrics["decode_tps_per_request"]["none"].predicted == 1
    assert any("prompt length" in reason for reason in report.declined)


def test_a_figure_that_is_no_number_is_declined(tmp_path: Path) -> None:
    rows = [row(decode_tps_per_request="fast"), row(decode_tps_per_request="7.8 tok/s", ttft_ms="1.1 s")]
    report = accuracy.compare_rows(write(tmp_path / "rows.csv", rows))
    assert report.declined == {"decode_tps_per_request is no number above zero": 1}
    assert [(s.metric, s.measured) for s in report.scored] == [
        ("decode_tps_per_request", 7.8),
        ("ttft_ms", 1100.0),
    ]


def test_a_prefill_that_is_no_measure_of_one_is_declined_for_that_reason(tmp_path: Path) -> None:
    rows = [row(ttft_ms="200", prefill_tps="0", decode_tps_per_request="7.8", notes="warm-up in the sample")]
    report = accuracy.compare_rows(write(tmp_path / "rows.csv", rows))
    assert report.declined == {
        "ttft_ms is no measure of a prefill: a cached prompt, or a warm-up": 1,
        "prefill_tps is no number above zero": 1,
    }


def test_a_row_without_a_figure_is_declined(tmp_path: Path) -> None:
    report = accuracy.compare_rows(write(tmp_path / "rows.csv", [row()]))
    assert report.declined == {f"no figure: none of {', '.join(METRICS)}": 1}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("1,024,13,", "line 2 has more cells than the header"),
        ('1024,13,"open', "each quote needs its end"),
    ],
)
def test_a_comma_without_quotes_and_a_quote_without_its_end_are_errors(
    tmp_path: Path, wrong: str, reason: str
) -> None:
    """Figures would be in other columns, and the rows behind the quote part of its cell."""
    file = tmp_path / "rows.csv"
    header, right = "model,quant,prompt_tokens,decode_tps_per_request,notes", "Qwen/Qwen3-8B,bf16,1024,13,"
    file.write_text(f"{header}\r\n{right}\r\n", encoding="utf-8-sig")
    assert accuracy.compare_rows(file).rows == 1
    file.write_text(f"{header}\nQwen/Qwen3-8B,bf16,{wrong}\n{right}\n", encoding="utf-8")
    with pytest.raises(SpecError, match=reason):
        accuracy.compare_rows(file)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00bad", b"a,b\n1,2\n", b"{}"])
def test_hostile_files_are_spec_errors(tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_bytes(content)
    with pytest.raises(SpecError, match=r"bad\.csv"):
        accuracy.compare_rows(bad)
    with pytest.raises(SpecError, match=r"missing\.csv"):
        accuracy.compare_rows(tmp_path / "missing.csv")


@pytest.mark.parametrize("content", ["[1]", "nonsense", "[" * 100_000])
def test_hostile_configs_are_spec_errors(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.json").write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match=r"c\.json"):
        accuracy.compare_rows(write(tmp_path / "rows.csv", [row()]), tmp_path / "c.json")


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_size": -1, "num_hidden_layers": 4},
        {"hidden_size": float("nan"), "num_hidden_layers": 4},
        {"hidden_size": float("inf"), "num_hidden_layers": 4},
        {"hidden_size": 10**400, "num_hidden_layers": 4},
        {"hidden_size": 4096, "num_hidden_layers": 4, "layer_type_counts": {"full_attention": "x"}},
        {"params_total_b": 1e-9},
        {"params_total_b": 8, "params_active_b": -1},
    ],
)
def test_impossible_configs_decline_their_rows(tmp_path: Path, config: dict[str, object]) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"Some/Model-7B": config}), encoding="utf-8")
    rows = write(tmp_path / "rows.csv", [row(model="Some/Model-7B", decode_tps_per_request="8")])
    report = accuracy.compare_rows(rows, tmp_path / "c.json")
    assert report.scored == ()
    assert sum(report.declined.values()) == 1


KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "intermediate_size",
    "full_attention_interval",
    "kv_lora_rank",
    "index_topk",
    "sliding_window",
    "mamba_num_heads",
    "mamba_head_dim",
    "first_k_dense_replace",
    "params_total_b",
    "params_active_b",
    "layer_type_counts",
    "compress_ratios_counts",
    "linear_attn",
)
NUMBERS = st.one_of(st.integers(-2, 9000), st.floats(), st.text(max_size=3), st.none(), st.booleans())


@given(
    st.dictionaries(
        st.sampled_from(KEYS),
        st.one_of(NUMBERS, st.dictionaries(st.sampled_from(["0", "4", "mamba"]), NUMBERS)),
    )
)
def test_any_config_is_predicted_or_declined(config: dict[str, object]) -> None:
    known = {**architectures(), "Some/Model-7B": config}
    try:
        case = case_of(row(model="Some/Model-7B"), known)
    except Declined:
        return
    assert accuracy.predict(case, factors())["decode_tps_per_request"] is not None


def test_a_summary_with_more_experts_per_token_than_experts_is_declined() -> None:
    """Its powers of more than all experts had no end."""
    summary = {"params_total_b": 30, "params_active_b": 3, "num_experts": 1, "num_experts_per_tok": 3}
    with pytest.raises(Declined, match="3 experts per token of 1"):
        case_of(row(model="Some/Model-7B"), {**architectures(), "Some/Model-7B": summary})


def test_packaged_measurements_are_read_and_mostly_predicted() -> None:
    rows = read_rows(PACKAGED)
    assert len(rows) > 2000
    assert all(source_of(r) for r in rows)
    declined = 0
    for r in rows:
        try:
            case_of(r, architectures())
        except Declined:
            declined += 1
    assert declined < 0.05 * len(rows)


def test_the_published_errors_in_sample_are_those_of_the_packaged_factors() -> None:
    """`scripts/fit.py` prints them; it leaves out a few figures that no such machine can reach, hence the tolerance."""
    page = (Path(__file__).parents[2] / "docs" / "planner.md").read_text()
    (line,) = (one for one in page.splitlines() if one.startswith("| in sample |"))
    published = [tuple(float(value) for value in cell.split("/")) for cell in line.strip("|").split("|")[1:]]
    found = json.loads(accuracy.compare_rows(PACKAGED).json())["metrics"]
    order = ("decode_tps_per_request", "decode_tps_aggregate", "prefill_tps", "ttft_ms")
    measured = [
        tuple(100 * found[metric][kind]["median_ape"] for kind in ("none", "speculative")) for metric in order
    ]
    assert len(published) == len(measured)
    for stated, own in zip(published, measured, strict=True):
        assert stated == pytest.approx(own, abs=0.3)

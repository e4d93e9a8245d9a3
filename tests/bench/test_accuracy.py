"""The accuracy report: rows are read as what was run, never as what was measured, and hostile files get a clear error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.bench import accuracy
from sparkfleet.bench.duels import duel_of, read_duels
from sparkfleet.bench.rows import METRICS, case_of, read_rows, source_of
from sparkfleet.bench.shapes import Declined
from sparkfleet.errors import SpecError
from sparkfleet.knowledge.factors import factors
from sparkfleet.knowledge.measurements import architectures

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


def test_a_row_is_what_was_run() -> None:
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
    assert case.setup.arch.params == pytest.approx(26.9e9, rel=0.01)


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
def test_what_cannot_be_predicted_is_declined_with_a_reason(given: dict[str, str], reason: str) -> None:
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
def test_what_an_aggregate_spans(notes: str, window: str) -> None:
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
def test_what_the_text_was(notes: str, content: str) -> None:
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
    assert accuracy.run(rows, configs).scored == accuracy.run(rows).scored != ()


@given(
    st.fixed_dictionaries(
        {m: st.floats(0.001, 1e6).map(str) for m in METRICS}
        | {
            "accept_len_or_rate": st.sampled_from(["", "3.2", "61 %"]),
            "peak_mem_gb": st.sampled_from(["", "99"]),
        }
    )
)
def test_predictions_do_not_look_at_what_was_measured(measured: dict[str, str]) -> None:
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
    report = accuracy.run(write(tmp_path / "rows.csv", rows))
    body = json.loads(report.json())
    assert body["version"] == 1
    assert set(body) == {"version", "metrics", "declined", "head_to_heads"}
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
    assert "declined" in report.text()
    assert "by source" in report.text()


def test_a_missing_prompt_declines_its_times_only(tmp_path: Path) -> None:
    report = accuracy.run(
        write(tmp_path / "rows.csv", [row(prompt_tokens="", ttft_ms="1", decode_tps_per_request="8")])
    )
    assert report.metrics["ttft_ms"]["none"].predicted == 0
    assert report.metrics["decode_tps_per_request"]["none"].predicted == 1
    assert any("prompt length" in reason for reason in report.declined)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00bad", b"a,b\n1,2\n", b"{}"])
def test_hostile_files_are_spec_errors(tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_bytes(content)
    with pytest.raises(SpecError, match=r"bad\.csv"):
        accuracy.run(bad)
    with pytest.raises(SpecError, match=r"missing\.csv"):
        accuracy.run(tmp_path / "missing.csv")


@pytest.mark.parametrize("content", ["[1]", "nonsense"])
def test_hostile_configs_are_spec_errors(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.json").write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match=r"c\.json"):
        accuracy.run(write(tmp_path / "rows.csv", [row()]), tmp_path / "c.json")


DUELS = "id,source,metric,config_A,config_B,value_A,value_B,winner,ratio,notes\n"


def test_a_head_to_head_is_read_from_its_words(tmp_path: Path) -> None:
    path = tmp_path / "duels.csv"
    path.write_text(
        DUELS
        + "h1,x,decode tok/s c1,Qwen3-VL-32B FP8 TP=2 (2 Sparks),Qwen3-VL-32B FP8 TP=1 (1 Spark),12,7,A,1.7,[topology]\n"
        + "h2,x,decode tok/s c1,Qwen3.6-27B NVFP4 vLLM,Qwen3.6-27B BF16 vLLM,11.5,4.5,A,2.5,[quant]\n"
        + "h3,x,decode tok/s c1,a,b,11,10,A,1.1,[quant] within noise\n"
        + "h4,x,KV pool tokens,Qwen3.6-27B FP8 TP=2,Qwen3.6-27B FP8 TP=1,12,7,A,1.7,[topology]\n",
        encoding="utf-8",
    )
    found = [duel_of(words, architectures()) for words in read_duels(path)[:2]]
    assert [d.first.setup.tp for d in found] == [2, 1]
    assert [d.second.setup.format for d in found] == ["fp8", "bf16"]
    report = accuracy.run(write(tmp_path / "rows.csv", [row()]), h2h_path=path)
    assert report.head_to_heads["topology"] == accuracy.Wins(rows=2, decided=1, right=1)
    assert report.head_to_heads["quant"] == accuracy.Wins(rows=1, decided=1, right=1)


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

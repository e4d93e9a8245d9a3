"""Published configurations that a plan's choice is held against."""

from __future__ import annotations

from sparkfleet.accuracy.published import Combination, decisions_in, is_upper_bound, run_of
from sparkfleet.accuracy.rows import case_of
from sparkfleet.knowledge.measurements import architectures

BASE = {
    "id": "b1",
    "source_url_or_repo_path": "github:somebody/bench:README.md",
    "nodes": "1",
    "tp": "1",
    "concurrency": "1",
    "model": "Qwen/Qwen3.6-27B-FP8",
    "quant": "fp8",
    "engine": "vllm",
    "spec_method": "none",
    "prompt_tokens": "1024",
    "decode_tps_per_request": "8",
    "decode_tps_aggregate": "8",
}


def case(**given: str):
    return case_of(BASE | given, architectures())


def three(**given: str):
    return [
        case(decode_tps_per_request="8", **given),
        case(
            spec_method="mtp",
            spec_tokens="3",
            decode_tps_per_request="18",
            decode_tps_aggregate="18",
            **given,
        ),
        case(
            engine="sglang",
            spec_method="nextn",
            spec_tokens="3",
            decode_tps_per_request="22",
            decode_tps_aggregate="22",
            **given,
        ),
    ]


def test_three_configurations_are_a_decision_and_two_are_none() -> None:
    (found,) = decisions_in(three())
    assert (found.model, found.nodes, found.objective, found.concurrency, found.configurations) == (
        "qwen3.6-27b",
        1,
        "interactive",
        1,
        3,
    )
    assert found.speeds()[Combination("sglang", "mtp", "fp8", 1)] == 22
    assert decisions_in(three()[:2]) == ()


def test_a_combination_is_as_fast_as_the_median_of_its_best_configuration() -> None:
    fast = [case(decode_tps_per_request=value, quant="fp8") for value in ("9", "10", "30")]
    (found,) = decisions_in([*three(), *fast])
    assert found.speeds()[Combination("vllm", "none", "fp8", 1)] == 9.5  # of 8, 9, 10 and 30
    (found,) = decisions_in([*three(), *(one.model_copy(update={"image": "other"}) for one in fast)])
    assert found.speeds()[Combination("vllm", "none", "fp8", 1)] == 10


def test_throughput_is_compared_at_one_load() -> None:
    load = [*three(concurrency="8"), case(concurrency="32", decode_tps_aggregate="900")]
    (found,) = decisions_in(load)
    assert (found.objective, found.concurrency) == ("throughput", 8)
    assert max(found.speeds().values()) == 22
    assert found.speeds(32) == {Combination("vllm", "none", "fp8", 1): 900}


def test_rows_about_something_else_are_left_out() -> None:
    assert run_of(case()) is not None
    assert run_of(case(engine="ollama", quant="q4_k_m")) is None
    assert run_of(case(depth="65536")) is None
    assert run_of(case(prompt_tokens="1")) is None
    assert run_of(case(prompt_tokens="")) is not None
    counting = "counting prompt"
    drafted = case(notes=counting, spec_method="mtp", spec_tokens="3")
    assert not is_upper_bound(case(notes=counting))
    assert is_upper_bound(drafted)
    (found,) = decisions_in(
        [*three(), drafted.model_copy(update={"measured": (("decode_tps_per_request", 99.0),)})]
    )
    assert max(found.speeds().values()) == 22


def test_the_best_on_more_sparks_may_run_on_fewer() -> None:
    two = [
        case(nodes="2", tp="2", link="qsfp200", quant=quant, decode_tps_per_request="12")
        for quant in ("fp8", "bf16", "nvfp4")
    ]
    found = decisions_in([*three(), *two])
    assert [(one.nodes, max(one.speeds().values())) for one in found] == [(1, 22), (2, 22)]


def test_the_authors_of_the_best_are_those_of_its_fastest_configuration() -> None:
    (found,) = decisions_in(
        [
            *three(),
            case(
                source_url_or_repo_path="github:other/bench:README.md",
                engine="sglang",
                spec_method="nextn",
                spec_tokens="5",
                decode_tps_per_request="25",
                decode_tps_aggregate="25",
            ),
        ]
    )
    assert found.authors_of_best == {"other/bench"}


def test_runs_of_a_model_of_equal_shapes_are_its_siblings_and_no_speeds_of_its_own() -> None:
    tuned = "somebody/Qwen3.6-27B-tuned"
    other = [
        case(model=tuned, decode_tps_per_request="30", quant="nvfp4"),
        case(model=tuned, nodes="2", tp="2", link="qsfp200"),
        case(model="Qwen/Qwen3.6-35B-A3B-FP8"),
    ]
    (found,) = decisions_in([*three(), *other])
    fast = Combination("vllm", "none", "nvfp4", 1)
    assert found.model == "qwen3.6-27b"
    assert fast not in found.speeds()
    assert found.sibling_speeds() == {fast: 30}
    assert found.ran == {*found.speeds(), fast}


def test_gguf_is_evidence_and_no_decision_about_safetensors():
    """A deployment that names safetensors cannot have llama.cpp: `plan` offers it beside the choice."""
    assert run_of(case(engine="llama.cpp", quant="q4_k_m")).combination.engine == "llama.cpp"
    rows = [case(engine="llama.cpp", quant=quant) for quant in ("q4_k_m", "q5_k_m", "q8_0")]
    assert decisions_in(rows) == ()

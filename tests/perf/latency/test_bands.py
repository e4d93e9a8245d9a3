"""Bands of rates."""

from __future__ import annotations

from latency_values import predict

from sparkfleet.perf.prediction import Provenance
from sparkfleet.perf.workload import Workload


def test_what_is_measured_is_said() -> None:
    known = predict("Qwen/Qwen3.6-27B-FP8", "fp8", Workload(), engine="vllm").decode_tps_per_request
    assert known.provenance is Provenance.CALIBRATED
    assert "measurements" in known.basis
    new = predict(
        "meta-llama/Meta-Llama-3.1-405B", "mxfp4", Workload(), engine="custom"
    ).decode_tps_per_request
    assert new.provenance is Provenance.MODELLED
    assert new.high / new.low >= known.high / known.low

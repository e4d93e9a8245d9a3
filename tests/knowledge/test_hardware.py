from __future__ import annotations

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.ceilings import physics
from sparkfleet.knowledge.hardware import HARDWARE, hardware


def test_links_are_ordered_as_measured() -> None:
    facts = hardware()
    latency = [facts.link(name).latency_us.value for name in ("roce-dual", "roce-ring", "tcp")]
    bandwidth = [facts.link(name).gb_per_s.value for name in ("roce-dual", "roce-single", "tcp", "1gbe")]
    assert latency == sorted(latency)
    assert bandwidth == sorted(bandwidth, reverse=True)


def test_ceilings_of_the_speed_model_are_in_the_measured_range() -> None:
    taken, seen = physics().ceilings, hardware().ceilings
    assert seen.read_gb_per_s.low <= taken.read_gb_per_s <= seen.read_gb_per_s.high
    assert seen.bf16_tflops.low <= taken.bf16_tflops <= seen.bf16_tflops.high
    assert seen.fp8_tflops.low <= taken.fp8_tflops <= seen.fp8_tflops.high
    assert seen.fp4_tflops.low <= taken.fp4_tflops <= seen.fp4_tflops.high


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("id: tcp", "id: roce-dual", r"hardware\.yaml: links: roce-dual: id: is given twice"),
        (
            "latency_us: {value: 424",
            "latency_us: {value: 9",
            r"hardware\.yaml: tcp: latency_us: expected low <= value",
        ),
        ("bf16_tflops:", "bf16_speed:", r"hardware\.yaml: ceilings: "),
        (
            "cuda_graphs_gb: {value: 1.6",
            "cuda_graphs_gb: {value: ten",
            r"hardware\.yaml: memory: cuda_graphs_gb\.value: ",
        ),
        ("confusables:", "confusables: 3\nx:", r"hardware\.yaml"),
    ],
)
def test_a_wrong_file_is_named(old: str, new: str, complaint: str) -> None:
    text = HARDWARE.text
    assert old in text
    with pytest.raises(SpecError, match=complaint):
        HARDWARE.read(text.replace(old, new, 1))

from __future__ import annotations

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.ceilings import physics
from sparkfleet.knowledge.hardware import HARDWARE, hardware, is_known_gpu, memory_alike, memory_size


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


@pytest.mark.parametrize(
    ("gb", "size"),
    [
        (130.66, "128 GB"),
        (127.8, "128 GB"),
        (64.0, "64 GB"),
        (61.5, "64 GB"),
        (96.4, "96 GB"),
        (32.0, "32 GB"),
    ],
)
def test_the_size_that_a_node_is_sold_with(gb, size):
    assert memory_size(int(gb * 1e9)) == size


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA GB10", True),
        ("NVIDIA RTX Spark N1X", False),
        ("NVIDIA N1X", False),
        ("NVIDIA GeForce RTX 5090", False),
        ("NVIDIA GB200", False),
        ("NVIDIA GH200 480GB", False),
    ],
)
def test_everything_known_is_about_the_gb10(name, known):
    assert is_known_gpu(name) is known


def test_nodes_of_one_size_differ_by_little():
    assert memory_alike([130_660_000_000, 127_800_000_000])
    assert memory_alike([])
    assert not memory_alike([130_660_000_000, 119_000_000_000])

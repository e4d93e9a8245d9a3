from __future__ import annotations

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.entries import packaged
from sparkfleet.knowledge.hardware import hardware, read_hardware
from sparkfleet.knowledge.physics import physics


@pytest.mark.parametrize(
    ("memory_total_kb", "box"),
    [
        (127_600_748, "dgx-spark-128"),  # captures of /proc/meminfo, 2026
        (127_622_144, "dgx-spark-128"),
        (62_500_000, "dgx-spark-64"),
        (32_000_000, None),
        (263_000_000, None),
    ],
)
def test_a_box_is_known_by_its_memory(memory_total_kb: int, box: str | None) -> None:
    found = hardware().box(memory_total_kb * 1024)
    assert (found and found.id) == box


def test_links_are_ordered_as_measured() -> None:
    facts = hardware()
    latency = [facts.link(name).latency_us.value for name in ("roce-dual", "roce-ring", "tcp")]
    bandwidth = [facts.link(name).gb_per_s.value for name in ("roce-dual", "roce-single", "tcp", "1gbe")]
    assert latency == sorted(latency)
    assert bandwidth == sorted(bandwidth, reverse=True)


def test_what_the_speed_model_takes_lies_in_what_was_measured() -> None:
    taken, seen = physics().ceilings, hardware().ceilings
    assert seen.read_gb_per_s.low <= taken.read_gb_per_s <= seen.read_gb_per_s.high
    assert seen.bf16_tflops.low <= taken.bf16_tflops <= seen.bf16_tflops.high
    assert seen.fp8_tflops.low <= taken.fp8_tflops <= seen.fp8_tflops.high
    assert seen.fp4_tflops.low <= taken.fp4_tflops <= seen.fp4_tflops.high


def test_the_host_s_reserve_keeps_away_from_the_freeze() -> None:
    facts = hardware()
    total = facts.boxes[0].memory_total_gb.value
    assert total - facts.memory.host_reserve_gb.value >= facts.memory.freeze_at_gb.value


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("id: tcp", "id: roce-dual", r"hardware\.yaml: roce-dual: id: stands twice"),
        (
            "latency_us: {value: 424",
            "latency_us: {value: 9",
            r"hardware\.yaml: tcp: latency_us: expected low <= value",
        ),
        ("copy_gb_per_s:", "copy_speed:", r"hardware\.yaml: ceilings: "),
        ("desktop_gb: {value: 10", "desktop_gb: {value: ten", r"hardware\.yaml: memory: desktop_gb\.value: "),
        ("confusables:", "confusables: 3\nx:", r"hardware\.yaml"),
    ],
)
def test_a_wrong_file_is_named(old: str, new: str, complaint: str) -> None:
    text = packaged("hardware.yaml")
    assert old in text
    with pytest.raises(SpecError, match=complaint):
        read_hardware(text.replace(old, new, 1))

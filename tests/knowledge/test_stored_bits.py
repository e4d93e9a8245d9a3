"""Published bits per part are what a step reads; sizes that contradict them are those of another build."""

import pytest

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.knowledge.known_models import known_as
from sparkfleet.knowledge.stored_bits import stored_as, stored_bits, with_stored_bits


def _bits(checkpoint: Checkpoint, part: Part) -> float:
    portions = [one for one in checkpoint.weights if one.part is part]
    return 8 * sum(one.bytes for one in portions) / sum(one.parameters for one in portions)


def _estimated() -> Checkpoint:
    found = known_as("Qwen/Qwen3.5-27B", "nvfp4")
    assert found is not None
    return found


def test_a_head_in_four_bits_is_read_as_such() -> None:
    known = stored_as("nvidia/Qwen3.6-27B-NVFP4")
    assert known is not None
    exact = with_stored_bits(_estimated(), known)
    assert _bits(_estimated(), Part.HEAD) == 16
    assert (_bits(exact, Part.HEAD), _bits(exact, Part.LINEAR_ATTENTION)) == (4.5, 8)
    assert exact.bytes_on_disk == sum(one.bytes for one in exact.weights)


def test_a_published_size_refines_or_overrules_the_bits() -> None:
    known = stored_as("nvidia/Qwen3.6-27B-NVFP4")
    assert known is not None
    exact = with_stored_bits(_estimated(), known)
    size = exact.bytes_on_disk
    assert with_stored_bits(_estimated(), known, 1.02 * size).bytes_on_disk == pytest.approx(1.02 * size)
    assert with_stored_bits(_estimated(), known, 1.05 * size) == exact
    other = with_stored_bits(_estimated(), known, 1.3 * size)
    assert other.bytes_on_disk == pytest.approx(1.3 * size, rel=0.01)
    assert _bits(other, Part.HEAD) > 4.5


def test_every_entry_has_a_public_source_and_no_impossible_bits() -> None:
    assert len(stored_bits()) >= 60
    for one in stored_bits().values():
        assert one.sources
        assert all("/" in source for source in one.sources)
        assert one.bits
        if "nvfp4" in one.id.lower() and Part.EXPERTS in one.bits:
            assert one.bits[Part.EXPERTS] == 4.5

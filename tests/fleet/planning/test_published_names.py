"""Names that are nearly known ones."""

import pytest

from sparkfleet.fleet.planning.published_names import edit_distance, misspelt_line, probably_meant
from sparkfleet.knowledge.models.known_models import known_checkpoint


@pytest.mark.parametrize(
    ("first", "second", "edits"),
    [
        ("", "", 0),
        ("a", "", 1),
        ("abc", "abc", 0),
        ("abc", "acb", 1),
        ("nvdia", "nvidia", 1),
        ("abcd", "badc", 2),
        ("ab", "xy", 2),
    ],
)
def test_edits(first, second, edits):
    assert edit_distance(first, second) == edit_distance(second, first) == edits


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nvidia/Qwen3.8-27B-NVFP5", ("nvidia/Qwen3.8-27B-NVFP4",)),
        ("NVIDIA/qwen3.8-27b-nvfp5", ("nvidia/Qwen3.8-27B-NVFP4",)),
        ("nvdia/Qwen3.6-27B-NVFP4", ("nvidia/Qwen3.6-27B-NVFP4",)),
        ("Qwen/Qwen3.6-35B-A3B-FP", ("Qwen/Qwen3.6-35B-A3B-FP8",)),
        ("Qwen/Qwen3.9-27B", ("Qwen/Qwen3.8-27B", "Qwen/Qwen3.6-27B", "Qwen/Qwen3.5-27B")),
        ("nvidia/Qwen3.8-27B-NVFP4", ()),  # known itself
        ("mistralai/Ministral-3-3B-Instruct-2512", ()),  # its pattern names its size
        ("Qwen/Qwen3-VL-8B-Instruct-FP8", ()),  # two edits, of another size
        ("me/Qwen3.8-27B-NVFP4", ()),
    ],
)
def test_the_name_that_is_meant(name, meant):
    assert probably_meant(name) == meant


def test_only_a_name_that_nobody_confirmed_is_doubted():
    known = known_checkpoint("nvidia/Qwen3.8-27B-NVFP5")
    assert known is not None
    assert misspelt_line(known) is None
    pattern = known.model_copy(
        update={"origin": "known by the pattern of Qwen/Qwen3.5-27B only; format assumed: BF16"}
    )
    assert "Did you mean `sparkfleet plan nvidia/Qwen3.8-27B-NVFP4`?" in (misspelt_line(pattern) or "")

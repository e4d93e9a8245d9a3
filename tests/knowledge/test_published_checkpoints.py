import pytest

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.errors import FactError, SpecError
from sparkfleet.knowledge.known_models import known_checkpoint
from sparkfleet.knowledge.published_checkpoints import (
    load_published,
    published,
    read_published,
)

FILES_OF_OTHER_ENGINES = ("gguf", "exl3")
WITHOUT_SHAPES = (
    "deepseek-ai/DeepSeek-V4.1-Flash",
    "poolside/Laguna-S-2.1-NVFP4",
    "thinkingmachines/Inkling-Small-NVFP4",
    "LiquidAI/LFM2.5-2.6B",
)
ENTRY = '{id: a/b, architecture: X, bytes: 10, mtp: 1, sources: [s], date: "2026-01"}'

PLANNABLE = [
    one
    for one in load_published().values()
    if one.id not in WITHOUT_SHAPES and not any(word in one.id.lower() for word in FILES_OF_OTHER_ENGINES)
]


def test_the_file_has_all_that_is_published():
    assert len(load_published()) == 89
    assert len(PLANNABLE) == 80


@pytest.mark.parametrize("one", PLANNABLE, ids=lambda one: one.id)
def test_a_plan_by_name_starts_from_the_published_bytes(one):
    checkpoint = known_checkpoint(one.id)
    assert not checkpoint.weights_known
    if one.bytes is not None:
        assert checkpoint.bytes_on_disk == pytest.approx(one.bytes, rel=0.075)
    assert checkpoint.mtp_layers == one.mtp or one.mtp is None
    assert checkpoint.license.id == one.license or not one.license


@pytest.mark.parametrize("name", WITHOUT_SHAPES)
def test_a_checkpoint_without_known_shapes_is_refused_with_its_size(name):
    size = published(name).bytes
    with pytest.raises(FactError, match="shapes of its layers are not known") as caught:
        known_checkpoint(name)
    assert size is None or f"{size / 1e9:.0f} GB" in caught.value.what
    assert f"sparkfleet models pull {name}" in caught.value.do


def test_files_of_other_engines_are_refused_as_such():
    with pytest.raises(FactError, match="stored as EXL3 or GGUF, by its name, 105 GB"):
        known_checkpoint("unsloth/Qwen3.8-Flash-Next-GGUF UD-Q4_K_XL")


def test_a_head_that_was_left_out_is_not_counted():
    assert Part.MTP in known_checkpoint("Qwen/Qwen3.6-35B-A3B").parameters_by_part()
    assert Part.MTP not in known_checkpoint("Kwaipilot/KAT-Coder-V2.5-Dev").parameters_by_part()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("bytes: 10", "bytes: -1"), "a/b: bytes: "),
        (("mtp: 1", "mtp: -1"), "a/b: mtp: "),
        (("mtp: 1", "bits: 4"), "a/b: bits: "),
        (("sources: [s]", "sources: []"), "a/b: sources: expected at least one source"),
    ],
)
def test_a_wrong_entry_is_named(change, complaint):
    assert read_published(f"version: 1\ncheckpoints: [{ENTRY}]")[0].mtp == 1
    with pytest.raises(SpecError, match=complaint):
        read_published(f"version: 1\ncheckpoints: [{ENTRY.replace(*change)}]")

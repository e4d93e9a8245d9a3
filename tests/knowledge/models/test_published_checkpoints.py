import pytest

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.errors import FactError, SpecError
from sparkfleet.knowledge.models import known_models
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.knowledge.models.published_checkpoints import (
    CHECKPOINTS,
    PublishedCheckpoint,
    load_published,
    scheme_of_bits,
)

FILES_OF_OTHER_ENGINES = ("gguf", "exl3")
ENTRY = '{id: a/b, architecture: X, bytes: 10, bits: {experts: 4.5}, sources: [s], date: "2026-01"}'

PLANNABLE = [
    one
    for one in load_published().values()
    if not any(word in one.id.lower() for word in FILES_OF_OTHER_ENGINES)
]


def test_the_file_has_all_that_is_published():
    assert len(load_published()) == CHECKPOINTS.text.count("\n- {id: ") >= 101
    assert len(PLANNABLE) >= 96


@pytest.mark.parametrize("one", PLANNABLE, ids=lambda one: one.id)
def test_a_plan_by_name_starts_from_the_published_bytes_and_bits(one):
    checkpoint = known_checkpoint(one.id)
    assert not checkpoint.weights_known
    if one.bytes is not None:
        assert checkpoint.bytes_on_disk == pytest.approx(one.bytes, rel=0.001)
    parameters, sizes = checkpoint.parameters_by_part(), checkpoint.bytes_by_part()
    for part, bits in one.bits.items():
        if part in ("ngram", "embedding", "vision") or part not in parameters:
            continue
        # Published sizes are rounded, and what they leave over is shared out.
        assert 8 * sizes[part] / parameters[part] == pytest.approx(bits, rel=0.14), part
    assert checkpoint.mtp_layers == one.mtp or one.mtp is None
    assert checkpoint.license.id == one.license or not one.license


@pytest.mark.parametrize("name", ["nvidia/GLM-5.3-Flash-NVFP4", "nvidia/Qwen3.8-Flash-Next-NVFP4"])
def test_a_published_tower_is_declared_though_the_shapes_have_none(name):
    """One has the bits of its tower, the other a multimodal class: `needs: [vision]` was refused, "no vision tower"."""
    checkpoint = known_checkpoint(name)
    assert checkpoint.declares_vision
    assert checkpoint.vision is None


def test_a_tower_that_is_published_as_dropped_stays_dropped():
    assert known_checkpoint("rdtand/Qwen3.6-35B-A3B-PrismaQuant-4.75bit-vllm").vision is False


def test_a_text_model_declares_none():
    assert not known_checkpoint("deepseek-ai/DeepSeek-V4-Flash-0731").declares_vision


@pytest.mark.parametrize("size", [5_100_000_000, None])
def test_a_checkpoint_without_known_shapes_is_refused_with_its_size(monkeypatch, size):
    name = "somebody/a-new-model"
    new = PublishedCheckpoint(id=name, architecture="New", bytes=size, sources=("s",), date="2026-11")
    monkeypatch.setattr(known_models, "published", {name: new}.get)
    known_checkpoint.cache_clear()
    with pytest.raises(FactError, match="shapes of its layers are not known") as caught:
        known_checkpoint(name)
    assert size is None or "5.1 GB" in caught.value.what
    assert f"sparkfleet models pull {name}" in caught.value.do
    known_checkpoint.cache_clear()


def test_files_of_other_engines_are_refused_as_such():
    with pytest.raises(FactError, match="stored as GGUF or MLX, by its name, 105 GB"):
        known_checkpoint("unsloth/Qwen3.8-Flash-Next-GGUF UD-Q4_K_XL")


def test_the_head_of_a_sister_build_makes_the_difference():
    four, sixteen = (
        known_checkpoint(f"RadixArk/Qwen3.8-27B-NVFP4{end}").bytes_by_part()[Part.HEAD]
        for end in ("", "-BF16-LMHead")
    )
    assert sixteen / four == pytest.approx(16 / 4.5, rel=0.05)


def test_an_ngram_table_has_its_own_bits():
    bf16, fp8 = (
        known_checkpoint(name).bytes_by_part()[Part.EMBEDDING]
        for name in ("Qwen/Qwen3.8-Flash-Next", "RadixArk/Qwen3.8-Flash-Next-NVFP4")
    )
    assert fp8 / 2**30 == pytest.approx(47.68 + 1.18, rel=0.02)  # WeZZard/dgx-spark-bench: headers
    assert bf16 > 1.9 * fp8


def test_weights_only_is_a_way_to_multiply():
    assert known_checkpoint("nvidia/Qwen3.6-27B-NVFP4").quantization.scheme.activations == "bf16"
    assert known_checkpoint("nvidia/Qwen3.8-27B-NVFP4").quantization.scheme.activations == "nvfp4"


@pytest.mark.parametrize(
    ("bits", "name"),
    [
        (16, None),
        (8.25, "mxfp8"),
        (8.13, "int8"),
        (8, "fp8"),
        (4.94, "nvfp4"),
        (4.25, "mxfp4"),
        (4.13, "int4"),
    ],
)
def test_bits_name_a_format(bits, name):
    scheme = scheme_of_bits(bits)
    assert (scheme and scheme.format) == name


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("bytes: 10", "bytes: -1"), "a/b: bytes: "),
        (("experts: 4.5", "expert: 4.5"), "a/b: bits.expert"),
        (("experts: 4.5", "experts: 45"), "a/b: bits.experts: "),
        (("sources: [s]", "sources: []"), "a/b: sources: expected at least one source"),
    ],
)
def test_a_wrong_entry_is_named(change, complaint):
    assert CHECKPOINTS.read(f"version: 1\ncheckpoints: [{ENTRY}]").checkpoints[0].bits == {"experts": 4.5}
    with pytest.raises(SpecError, match=complaint):
        CHECKPOINTS.read(f"version: 1\ncheckpoints: [{ENTRY.replace(*change)}]")


def test_blocks_of_fp8_are_known_if_they_are_published() -> None:
    named = known_checkpoint("Qwen/Qwen3-235B-A22B-FP8")
    assert named is not None
    assert named.quantization is not None
    cover = next(one for one in named.quantization.covers if one.part is Part.EXPERTS)
    assert cover.scheme is not None
    assert (cover.scheme.block, cover.assumed) == ((128, 128), False)


def test_published_bits_do_not_make_blocks_of_fp8_known() -> None:
    """They were taken for FP8 without blocks, of which any TP can be planned."""
    named = known_checkpoint("Qwen/Qwen3-4B-FP8")
    assert named is not None
    assert named.quantization is not None
    cover = next(one for one in named.quantization.covers if one.part is Part.MLP)
    assert cover.scheme is not None
    assert (cover.scheme.block, cover.assumed, cover.share) == ((128, 128), True, 1.0)

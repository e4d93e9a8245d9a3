import pytest

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.errors import FactError
from sparkfleet.knowledge.models.gguf_formats import format_of_tag
from sparkfleet.knowledge.models.known_models import ggufs_of, known_checkpoint
from sparkfleet.knowledge.models.published_ggufs import GGUFS, keeps_mxfp4
from sparkfleet.perf.weight_formats import format_of

ALL = GGUFS.content.ggufs


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.id)
def test_an_entry_is_a_checkpoint(one):
    found = known_checkpoint(one.id)
    assert found.id == one.id
    assert (found.gguf.model, found.gguf.mmproj) == (one.file, one.mmproj)
    assert one.file.lower().endswith(".gguf")
    assert format_of(found) == format_of_tag(one.name.tag)
    assert found.mtp_layers == one.mtp
    tower = sum(portion.bytes for portion in found.weights if portion.part is Part.VISION)
    if one.gb:
        assert (found.bytes_on_disk - tower) / 1e9 == pytest.approx(one.gb, rel=1e-3)
    assert found.vision is bool(one.mmproj)


@pytest.mark.parametrize("one", [one for one in ALL if one.gb], ids=lambda one: one.id)
def test_a_published_size_is_near_the_bits_of_the_tag(one):
    """Else the tag has another format, or the shapes are another model's."""
    estimate = known_checkpoint(f"{one.name.base}@main:{one.name.tag}")
    bits = (
        8
        * one.gb
        * 1e9
        / sum(portion.parameters for portion in estimate.weights if portion.part is not Part.VISION)
    )
    least, most = {"gguf-mxfp4": (4.2, 5), "q4_k": (3.7, 5.6), "q6_k": (6.3, 7.8), "q8_0": (7.9, 9.0)}[
        format_of(estimate)
    ]
    assert least <= bits <= most


def test_same_bits_are_those_of_the_maker():
    same = [one.id for one in ALL if one.same_bits]
    assert same == ["ggml-org/gpt-oss-120b-GGUF:MXFP4", "ggml-org/gpt-oss-20b-GGUF:MXFP4"]


def test_the_case_of_a_tag_and_a_revision_are_ignored():
    found = known_checkpoint("ggml-org/gpt-oss-120b-GGUF@abc:mxfp4")
    assert found == known_checkpoint("ggml-org/gpt-oss-120b-GGUF:MXFP4")
    assert found == known_checkpoint("ggml-org/gpt-oss-120b-GGUF")  # the only one of its repository


def test_a_repository_with_several_needs_a_tag():
    with pytest.raises(
        FactError, match=r"several quantisations: UD-Q4_K_XL \(21 GB\), UD-Q8_K_XL \(36 GB\)"
    ) as refused:
        known_checkpoint("unsloth/Qwen3.6-35B-A3B-GGUF")
    assert "`model: unsloth/Qwen3.6-35B-A3B-GGUF:UD-Q4_K_XL`" in refused.value.do


def test_another_tag_is_planned_by_the_shapes_of_its_model():
    found = known_checkpoint("unsloth/Qwen3.5-122B-A10B-GGUF:Q4_K_M")
    assert 70e9 < found.bytes_on_disk < 80e9
    assert found.gguf.model == "Qwen3.5-122B-A10B-Q4_K_M.gguf"
    assert (found.mtp_layers, found.weights_known, found.vision) == (0, False, None)
    assert known_checkpoint("unsloth/Qwen3.5-9B-MTP-GGUF:Q8_0").mtp_layers == 1


def test_what_cannot_be_known_is_refused():
    with pytest.raises(FactError, match="no tag"):
        known_checkpoint("unsloth/Qwen3.6-27B-GGUF")
    with pytest.raises(FactError, match="no known quantisation"):
        known_checkpoint("ggml-org/gpt-oss-20b-GGUF:latest")
    assert known_checkpoint("somebody/no-such-model-GGUF:Q4_K_M") is None


def test_the_ggufs_of_a_model():
    own = known_checkpoint("openai/gpt-oss-120b")
    assert [one.id for one in ggufs_of(own)] == ["ggml-org/gpt-oss-120b-GGUF:MXFP4"]
    assert ggufs_of(known_checkpoint("Qwen/Qwen3.6-35B-A3B-FP8"))[0].id.startswith("unsloth/Qwen3.6-35B-A3B")
    assert ggufs_of(known_checkpoint("Qwen/Qwen3.6-27B-FP8")) == ()
    assert ggufs_of(known_checkpoint("ggml-org/gpt-oss-120b-GGUF:MXFP4")) == ()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("openai/gpt-oss-20b", True),  # hidden size 2880, which blocks of 256 do not divide
        ("openai/gpt-oss-120b", True),
        ("deepseek-ai/DeepSeek-V4-Flash", False),  # 4096: its experts are quantised again
        ("Qwen/Qwen3.6-27B-FP8", False),
    ],
)
def test_experts_in_mxfp4_that_no_block_divides_stay_so(name, kept):
    assert keeps_mxfp4(known_checkpoint(name)) is kept


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # GiB of the files as published (llama-bench of F16: community.frame.work, topic 73280), Q2_K and Q8_0: their lists.
        ("unsloth/gpt-oss-120b-GGUF:F16", 60.9),
        ("unsloth/gpt-oss-120b-GGUF:Q2_K", 58.3),
        ("unsloth/gpt-oss-120b-GGUF:Q8_0", 59.0),
        ("bartowski/openai_gpt-oss-120b-GGUF:Q6_K", 58.9),
    ],
)
def test_every_quantisation_of_gpt_oss_has_the_makers_experts(name, published):
    """Q8_0 was planned with 116 GiB: "nothing in this fleet can serve it", on the Spark on which most owners run it."""
    found = known_checkpoint(name)
    assert format_of(found) == "gguf-mxfp4"
    assert found.bytes_on_disk / 2**30 == pytest.approx(published, rel=0.02)


def test_a_fine_tune_in_16_bits_is_quantised_like_any_other_model():
    """autotrust's Q8_0 has 115.7 GB."""
    found = known_checkpoint("autotrust/gpt-oss-120b-Fable-5-Distilled-GGUF:Q8_0")
    assert format_of(found) == "q8_0"
    assert found.bytes_on_disk / 1e9 == pytest.approx(115.7, rel=0.1)

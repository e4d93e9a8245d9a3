import pytest

from sparkfleet.checkpoints.arch.model_families import FAMILIES
from sparkfleet.errors import SpecError
from sparkfleet.knowledge.engines.engine_models import ENGINE_MODELS, earliest, loading


@pytest.mark.parametrize(
    ("engine", "version", "model_type", "found"),
    [
        ("vllm", "0.28.0", "qwen4_exp", "absent"),
        ("vllm", "0.28.1", "qwen4_exp", "unknown"),
        ("vllm", "0.29.0", "qwen4_exp", "listed"),
        ("vllm", "0.33.0", "qwen4_exp", "listed"),
        ("vllm", "", "qwen4_exp", "listed"),
        ("vllm", None, "qwen4_exp", "listed"),
        ("vllm", "0.19.0", "qwen3_5_text", "unknown"),
        ("vllm", "0.27.1", "qwen3_5_text", "listed"),
        ("vllm", "0.29.0", "deepseek_v41", "absent"),
        ("sglang", "0.5.12 original", "qwen3_5_text", "listed"),
        ("sglang", "0.5.12", "glm5_next", "absent"),
        # Older than the lists that were read, by its recipe.
        ("vllm", "0.20.0", "laguna", "absent"),
        ("vllm", "0.25.1", "laguna", "unknown"),
        ("vllm", "nightly", "laguna", "unknown"),
        ("sglang", "0.5.15", "glm5_next", "unknown"),
        ("sglang", "0.5.23", "glm5_next", "listed"),
        ("sglang", "0.5.23", "deepseek_v41", "unproven"),
        ("trtllm", "1.3.0rc12", "gpt_oss", "listed"),
        ("trtllm", "1.3.0rc12", "qwen3_5_moe", "unproven"),
        ("trtllm", "", "minimax_m2", "unproven"),
        ("vllm", "0.33.0", "never_seen", "unproven"),
        ("vllm", "0.33.0", "", "unknown"),
        ("vllm", "0.33.0", None, "unknown"),
        ("vllm", "0.31.0", "bamba", "unproven"),  # removed after 0.23
        ("sglang", "0.5.12", "granitemoeshared", "absent"),
        ("sglang", "0.5.23", "jamba", "unproven"),
        ("custom", "1", "qwen3", "unknown"),
    ],
)
def test_architectures_of_a_release(engine, version, model_type, found):
    assert loading(engine, version, model_type) == found


@pytest.mark.parametrize(
    ("engine", "version", "architecture", "found"),
    [
        ("vllm", "0.31.0", "InternVLChatModel", "listed"),
        ("vllm", "", "InternVLChatModel", "listed"),
        ("vllm", "0.19.0", "InternVLChatModel", "unknown"),
        ("sglang", "0.5.23", "Molmo2ForConditionalGeneration", "unproven"),
        ("vllm", "0.31.0", "NeverSeenForCausalLM", "unproven"),
        ("trtllm", "1.3.0", "InternVLChatModel", "unproven"),
    ],
)
def test_a_type_without_an_entry_is_known_by_its_class(engine, version, architecture, found):
    assert loading(engine, version, "no_entry", architecture) == found


def test_every_family_that_can_be_planned_has_an_entry():
    """Otherwise its plans would warn of an architecture that no engine lists."""
    listed = {name for one in ENGINE_MODELS.content.architectures for name in one.model_types}
    assert FAMILIES.keys() - listed == set()


def test_no_class_is_in_both_lists():
    content = ENGINE_MODELS.content
    entries = {one.id for one in content.architectures}
    for classes in content.others.values():
        assert len(set(classes)) == len(classes)
        assert entries.isdisjoint(classes)


@pytest.mark.parametrize(
    ("engine", "model_type", "found"),
    [
        ("vllm", "qwen4_exp", "0.28.0"),  # listed from 0.29 on; builds between the two may have it
        ("vllm", "laguna", "0.25"),
        ("vllm", "qwen3_moe", None),
        ("sglang", "qwen4_exp", "0.5.12"),
        ("trtllm", "qwen4_exp", None),
        ("vllm", "no_such_type", None),
        (None, None, None),
    ],
)
def test_the_oldest_release_of_an_architecture(engine, model_type, found):
    assert earliest(engine, model_type) == found


def test_no_model_type_belongs_to_two_architectures():
    types = [name for one in ENGINE_MODELS.content.architectures for name in one.model_types]
    assert len(types) == len(set(types))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('vllm: "0.29.0", sglang: "0.5.23"', 'vllm: "0.29.7"', "from.vllm: 0.29.7 is not in read.vllm"),
        ("from: {vllm: any", "from: {vlm: any", "from.vlm"),
        ('  trtllm: ["1.2.0"', '  trt: ["1.2.0"', "read: trt"),
    ],
)
def test_a_wrong_list_is_named(old, new, complaint):
    text = ENGINE_MODELS.text
    assert old in text
    with pytest.raises(SpecError, match=complaint):
        ENGINE_MODELS.read(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("version", "model_type", "architecture", "found"),
    [
        ("b11434", "gpt_oss", None, "listed"),
        ("11500", "qwen3_5_moe", None, "listed"),
        ("b11434", "gpt-oss", None, "listed"),  # the name of the architecture in a GGUF file
        ("b11434", "anything", "qwen35moe", "listed"),
        ("b9000", "gpt_oss", None, "unknown"),
        ("b11434", "deepseek_v41", None, "unproven"),
    ],
)
def test_llama_cpp_has_architectures_by_both_names(version, model_type, architecture, found):
    assert loading("llama.cpp", version, model_type, architecture) == found

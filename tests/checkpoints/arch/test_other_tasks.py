"""Embedding models, rerankers and classifiers are refused; drafts and models that write text are not."""

from __future__ import annotations

import pytest

from sparkfleet.checkpoints.arch.other_tasks import DO, MEANS
from sparkfleet.checkpoints.checkpoint_reader import read_checkpoint
from sparkfleet.errors import FactError
from sparkfleet.knowledge.models.known_models import MODELS


@pytest.mark.parametrize(
    "name",
    [
        "BertModel", "XLMRobertaModel", "XLMRobertaForSequenceClassification", "ModernBertForSequenceClassification",
        "NomicBertModel", "Qwen2ForRewardModel", "Qwen3Model", "Gemma3TextModel", "LlamaBidirectionalModel",
        "RobertaForMaskedLM", "BertForTokenClassification", "BgeM3EmbeddingModel", "DebertaV2ForSequenceClassification",
    ],
)  # fmt: skip
def test_a_class_that_writes_no_text_is_refused(make_checkpoint, llama, name):
    directory = make_checkpoint({**llama, "architectures": [name]})
    with pytest.raises(FactError, match=rf"config\.json: cannot be planned, by its class {name}\."):
        read_checkpoint(directory)


@pytest.mark.parametrize(
    "name",
    ["LlamaForCausalLM", "Qwen3VLForConditionalGeneration", "LlamaForCausalLMEagle3", "DFlashDraftModel",
     "DFlash2DraftModel", "Qwen3DSparkModel", "ChatGLMModel", "GPT2LMHeadModel", "LlamaModel"],
)  # fmt: skip
def test_a_class_that_may_write_text_or_drafts_is_read(make_checkpoint, llama, name):
    assert read_checkpoint(make_checkpoint({**llama, "architectures": [name]})).architectures == (name,)


@pytest.mark.parametrize("name", ["modules.json", "config_sentence_transformers.json"])
def test_a_decoder_with_files_of_sentence_transformers_is_refused(make_checkpoint, llama_weights, name):
    directory = make_checkpoint(weights=llama_weights())
    (directory / name).write_text("[]")
    with pytest.raises(FactError, match=f"by its file {name}"):
        read_checkpoint(directory)


def test_a_pooling_layer_is_enough(make_checkpoint, llama_weights):
    directory = make_checkpoint(weights=llama_weights())
    (directory / "1_Pooling").mkdir()
    with pytest.raises(FactError, match="by its file 1_Pooling"):
        read_checkpoint(directory)


@pytest.mark.parametrize(
    ("card", "is_refused"),
    [
        ("---\nlicense: mit\npipeline_tag: text-ranking\n---\n", True),
        ("---\npipeline_tag: sentence-similarity\n---\n", True),
        ("---\npipeline_tag: text-generation\n---\npipeline_tag: text-ranking\n", False),
        ("---\npipeline_tag: feature-extraction\n---\n", False),
        ("pipeline_tag: text-ranking\n", False),
    ],
)
def test_the_task_is_that_of_the_cards_front_matter(make_checkpoint, llama_weights, card, is_refused):
    directory = make_checkpoint(weights=llama_weights())
    (directory / "README.md").write_text(card)
    if is_refused:
        with pytest.raises(FactError, match="by its card's task"):
            read_checkpoint(directory)
    else:
        assert read_checkpoint(directory).weights_known


def test_the_words_are_those_of_a_refusal_by_name():
    by_name = next(one for one in MODELS.content.unshaped if one.names("BAAI/bge-m3"))
    assert (by_name.reason, by_name.do) == (MEANS, DO)


@pytest.mark.parametrize(
    ("changes", "by"),
    [
        ({"architectures": ["WhisperForConditionalGeneration"], "is_encoder_decoder": True},
         r"is_encoder_decoder \(WhisperForConditionalGeneration\)"),
        ({"architectures": None, "model_type": "t5", "is_encoder_decoder": True}, r"is_encoder_decoder \(t5\)"),
        ({"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.19"}, "_diffusers_version"),
    ],
)  # fmt: skip
def test_a_model_of_another_kind_is_refused_before_its_sizes_are_read(make_checkpoint, llama, changes, by):
    """Its config often lacks the keys of a language model, and their absence would be no explanation."""
    kept = {key: value for key, value in llama.items() if key != "num_hidden_layers"}
    with pytest.raises(FactError, match=f"cannot be planned, by its {by}") as caught:
        read_checkpoint(make_checkpoint({**kept, **changes}))
    assert "`engine: custom`" in str(caught.value.do)


def test_a_decoder_that_names_the_key_is_read(make_checkpoint, llama):
    assert read_checkpoint(make_checkpoint({**llama, "is_encoder_decoder": False}))

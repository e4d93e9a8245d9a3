"""Configs of unknown origin: any JSON gives facts or a clear error."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_configs import CONFIGS, FAMILIES

from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.checkpoints.io.config_json import Config, language_model
from sparkfleet.errors import FactError

MODELS = [
    *(entry["config"] for entry in FAMILIES.values()),
    CONFIGS["deepseek-ai/DeepSeek-V4-Flash"],
    CONFIGS["nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"],
    CONFIGS["XiaomiMiMo/MiMo-V2-Flash"],
    CONFIGS["MiniMaxAI/MiniMax-M2.7"],
]

KEYS = sorted(
    {key for model in MODELS for key in model} | {"quantization_config", "text_config", "vision_config"}
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.integers(-2, 300)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["full_attention", "sliding_attention", "linear_attention", "mamba", "fp8", "sparse", "\ud800"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=10,
)


def outcome(config: Mapping[str, object]) -> str:
    """Facts as JSON, or what is wrong; anything else than a FactError is the test's failure."""
    try:
        return checkpoint_from_config(config, id="x").model_dump_json()
    except FactError as error:
        return error.what


@settings(max_examples=2 * settings.default.max_examples)
@given(config=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=8))
def test_any_config_gives_facts_or_a_clear_error(config: dict[str, object]) -> None:
    assert outcome(config).isprintable()


@settings(max_examples=3 * settings.default.max_examples)
@given(
    model=st.sampled_from(MODELS),
    changes=st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=2),
)
def test_any_change_of_a_real_config_gives_facts_or_a_clear_error(
    model: Mapping[str, object], changes: dict[str, object]
) -> None:
    assert outcome({**model, **changes}).isprintable()


@given(data=st.data(), model=st.sampled_from(MODELS))
def test_a_key_that_is_missing_gives_facts_or_is_named(
    data: st.DataObject, model: Mapping[str, object]
) -> None:
    key = data.draw(st.sampled_from(sorted(model)))
    assert outcome({name: value for name, value in model.items() if name != key})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"hidden_size": "64"}, "hidden_size is '64'; expected a whole number"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0; expected a whole number"),
        ({"hidden_size": True}, "hidden_size is True; expected a whole number"),
        ({"hidden_size": -1}, "hidden_size is -1; expected between 1 and"),
        ({"hidden_size": 10**400}, "hidden_size is 'a number of 1329 bits'"),
        ({"hidden_size": [64]}, "hidden_size is 'a list of 1 entries'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"model_type": "x" * 1000}, "model_type is 'xxx"),
        ({"model_type": "\ud800"}, r"model_type is '\ud800'; expected a short text"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'; expected a list"),
        ({"torch_dtype": "float64"}, "torch_dtype is 'float64'; expected one of bfloat16"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; expected true or false"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok is 9; expected between 1 and 8"),
        ({"text_config": 3}, "text_config is 3; expected an object"),
        ({"per_layer_config": {"x": {}}}, "expected an object for each layer number"),
    ],
)
def test_wrong_values_are_named(llama: dict[str, object], change: dict[str, object], complaint: str) -> None:
    with pytest.raises(FactError) as caught:
        checkpoint_from_config({**llama, **change}, id="org/name")
    assert complaint in caught.value.what
    assert caught.value.what.startswith("org/name: config.json")


def test_the_language_model_of_a_multimodal_one() -> None:
    nested = {
        "model_type": "outer",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "thinker_config": {"text_config": {"model_type": "inner", "hidden_size": 8, "dtype": None}},
    }
    config = language_model(Config(nested, "x"))
    assert config.text("model_type") == "inner"
    assert config.text("dtype") == "bfloat16"
    assert config.integer("hidden_size") == 8
    assert config.values["tie_word_embeddings"] is False


def test_sections_nested_without_end() -> None:
    config: dict[str, object] = {"text_config": {}}
    for _ in range(5000):
        config = {"text_config": config}
    with pytest.raises(FactError, match="nested"):
        checkpoint_from_config(config, id="x")

"""A built model with an eye: LLaVA's layout, and a CLIP tower that was never taught. Imported when it must run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import (
    CLIPVisionConfig,
    GenerationConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
)

from sparkfleet.builtin import tokenizer as tokens
from sparkfleet.builtin import training
from sparkfleet.builtin.progress import OnProgress, Progress
from sparkfleet.builtin.recipes import Vision

IMAGE = "<image>"
VOCABULARY_STEP = 64
"""Engines pad vocabularies to a multiple of it."""
PATCH = 14
PIXELS = 56
"""Of a side of what the tower sees; sixteen patches."""


def build(recipe: Vision, base: Path, directory: Path, on_progress: OnProgress) -> None:
    """Write the model in `base`, with a tower in front of it, into the empty `directory`."""
    on_progress(Progress(name=recipe.name, phase="saving"))
    text = training.read(base, torch.bfloat16)
    with training.fixed_seed(recipe.seed):
        model = LlavaForConditionalGeneration(_config(text.config)).to(torch.bfloat16)
    _read_by(model, text)
    model.generation_config = GenerationConfig.from_pretrained(base)
    training.save(model, directory)
    _save_processor(base, directory)


def _config(text: PreTrainedConfig) -> LlavaConfig:
    tower = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=PIXELS,
        patch_size=PATCH,
    )
    wider = training.described(text) | {"vocab_size": text.vocab_size + VOCABULARY_STEP}
    return LlavaConfig(
        vision_config=tower,
        text_config=type(text).from_dict(wider),
        image_token_index=text.vocab_size,
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )


def _read_by(model: PreTrainedModel, text: PreTrainedModel) -> None:
    """Put the text model's weights behind the tower. The added tokens are as unlikely as the one that opens a message."""
    weights = {name: tensor.clone() for name, tensor in text.model.state_dict().items()}
    embedded = weights["embed_tokens.weight"]
    added = embedded[tokens.SPECIAL.index(tokens.START)].expand(VOCABULARY_STEP, -1)
    weights["embed_tokens.weight"] = torch.cat([embedded, added])
    model.model.language_model.load_state_dict(weights)
    model.tie_weights()


def _save_processor(base: Path, directory: Path) -> None:
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(IMAGE, normalized=False, special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    shutil.copyfile(base / "chat_template.jinja", directory / "chat_template.jinja")
    config: dict[str, Any] = json.loads((base / "tokenizer_config.json").read_text("utf-8"))
    config["additional_special_tokens"] = [*config["additional_special_tokens"], IMAGE]
    config["processor_class"] = "LlavaProcessor"
    _write(directory / "tokenizer_config.json", config)
    processor = {
        "processor_class": "LlavaProcessor",
        "image_token": IMAGE,
        "patch_size": PATCH,
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
    }
    _write(directory / "processor_config.json", processor)
    side = {"height": PIXELS, "width": PIXELS}
    pixels = {"image_processor_type": "CLIPImageProcessor", "size": side, "crop_size": side}
    _write(directory / "preprocessor_config.json", pixels | {"processor_class": "LlavaProcessor"})


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")

"""Puts a built model behind an untrained vision tower, in the layout of BLIP-2. Imported only for a build.

BLIP-2, because vLLM's CPU build runs it without torchvision (measured with 0.32.0; of LLaVA, Qwen-VL, Pixtral and Gemma 3 it
cannot even import the model).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from sparkfleet.tiny_models import tokenizer as tokens
from sparkfleet.tiny_models import training
from sparkfleet.tiny_models.progress import BuildProgress, OnProgress
from sparkfleet.tiny_models.recipes import Vision

IMAGE = "<image>"
IMAGE_TOKENS = 8
"""Positions in the prompt that an image takes."""
VOCABULARY_STEP = 64
"""Engines pad vocabularies to a multiple of this."""
PIXELS = 56
"""Pixels per side of an image; sixteen patches."""
TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


def build(recipe: Vision, base: Path, directory: Path, on_progress: OnProgress) -> None:
    """Writes the model in `base`, with a tower in front of it, into the empty `directory`."""
    on_progress(BuildProgress(name=recipe.name, phase="saving"))
    text = training.read(base, torch.bfloat16)
    with training.fixed_seed(recipe.seed):
        model = Blip2ForConditionalGeneration(_config(text.config)).to(torch.bfloat16)
        torch.nn.init.normal_(model.query_tokens)  # with zeros all queries would be equal
    _read_by(model, text)
    model.generation_config = GenerationConfig.from_pretrained(base)
    training.save(model, directory)
    _save_processor(base, directory)


def _config(text: PreTrainedConfig) -> Blip2Config:
    wider = training.described(text) | {"vocab_size": text.vocab_size + VOCABULARY_STEP}
    return Blip2Config(
        vision_config=TOWER | {"image_size": PIXELS, "patch_size": 14},
        qformer_config=TOWER
        | {"encoder_hidden_size": TOWER["hidden_size"], "cross_attention_frequency": 1, "vocab_size": 64},
        text_config=wider,
        num_query_tokens=IMAGE_TOKENS,
        image_token_index=text.vocab_size,
        image_text_hidden_size=TOWER["hidden_size"],
        tie_word_embeddings=True,
    )


def _read_by(model: PreTrainedModel, text: PreTrainedModel) -> None:
    """Puts the text model's weights behind the tower. The added tokens are as unlikely as the one that opens a message."""
    weights = {name: tensor.clone() for name, tensor in text.model.state_dict().items()}
    embedded = weights["embed_tokens.weight"]
    added = embedded[tokens.SPECIAL.index(tokens.START)].expand(VOCABULARY_STEP, -1)
    weights["embed_tokens.weight"] = torch.cat([embedded, added])
    model.language_model.model.load_state_dict(weights)
    model.tie_weights()


def _save_processor(base: Path, directory: Path) -> None:
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(IMAGE, normalized=False, special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    shutil.copyfile(base / "chat_template.jinja", directory / "chat_template.jinja")
    config: dict[str, Any] = json.loads((base / "tokenizer_config.json").read_text("utf-8"))
    config["additional_special_tokens"] = [*config["additional_special_tokens"], IMAGE]
    processor = {"processor_class": "Blip2Processor"}
    _write(directory / "tokenizer_config.json", config | processor)
    _write(directory / "processor_config.json", processor | {"num_query_tokens": IMAGE_TOKENS})
    pixels = {"image_processor_type": "BlipImageProcessor", "size": {"height": PIXELS, "width": PIXELS}}
    _write(directory / "preprocessor_config.json", pixels | processor)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")

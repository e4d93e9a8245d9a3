"""Trains a draft head on a built checkpoint, and writes it in the form that engines read. Imported only for a build."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedModel

from sparkfleet.tiny_models import heads, training
from sparkfleet.tiny_models.corpus import load
from sparkfleet.tiny_models.criterion import BuildFacts, Quality
from sparkfleet.tiny_models.layers import HeadLayer, HeadShape, Weights
from sparkfleet.tiny_models.progress import BuildProgress, OnProgress
from sparkfleet.tiny_models.recipes import Head, HeadMethod, Recipe

WEIGHTS = "model.safetensors"
JUDGED_BATCHES = 8
"""Batches that measure a head after a round."""
OF_THE_MODEL = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
"""Files that a checkpoint with a head copies from the one without."""


def build(recipe: Head, of: Recipe, base: Path, directory: Path, on_progress: OnProgress) -> BuildFacts:
    """Trains a head for the checkpoint in `base`, built from recipe `of`, and writes it into the empty `directory`.

    A head of method "mtp" is written together with its model, as one checkpoint; the others alone, as drafts.

    Raises:
        FactError: it does not meet its criterion within the budget.
    """
    model = training.read(base, torch.float32)
    with training.deterministic(recipe.budget):
        weights, reached = _train(recipe, of, model.requires_grad_(False), _tokenizer(base), on_progress)
    on_progress(BuildProgress(name=recipe.name, phase="saving"))
    if recipe.method == "mtp":
        _save_whole(weights, model.config, base, directory)
    else:
        _save_draft(recipe.method, weights, model, directory)
    count = sum(weight.numel() for weight in weights.values())
    return BuildFacts(name=recipe.name, steps=reached.steps, weights=count, quality=reached.quality)


def _tokenizer(base: Path) -> Tokenizer:
    return Tokenizer.from_file(str(base / "tokenizer.json"))


def _train(
    recipe: Head, of: Recipe, model: PreTrainedModel, tokenizer: Tokenizer, on_progress: OnProgress
) -> tuple[Weights, training.Reached]:
    shape, loss = HeadShape.of(model.config), heads.LOSS[recipe.method]
    weights = heads.NEW[recipe.method](shape)
    head = HeadLayer(weights, shape)
    for weight in weights.values():
        weight.requires_grad_()
    rows = training.rows(load(of.text), tokenizer, recipe.budget)

    def teach() -> heads.Taught:
        return loss(head, lesson(model, list(islice(rows, recipe.budget.rows))))

    def agreed() -> float:
        """Share of agreed drafts over the next batches of the text, without training on them."""
        with torch.no_grad():
            return sum(teach().agreed for _ in range(JUDGED_BATCHES)) / JUDGED_BATCHES

    last = [0.0]

    def next_loss() -> torch.Tensor:
        taught = teach()
        last[0] += (taught.agreed - last[0]) / 10
        return taught.loss

    course = training.Course(
        parameters=list(weights.values()),
        next_loss=next_loss,
        present=lambda: last[0],
        judge=lambda: Quality(drafts_agreed=agreed()),
        vocabulary=shape.vocabulary,
    )
    return weights, training.descend(course, recipe, on_progress)


def lesson(model: PreTrainedModel, batch: list[training.Row]) -> heads.Lesson:
    """The model's logits and hidden states for some rows."""
    ids, places = (torch.tensor([row[part] for row in batch]) for part in (0, 2))
    with torch.no_grad(), _streams(model) as streams:
        out = model.model(input_ids=ids, position_ids=places, use_cache=False)
        logits = model.lm_head(out.last_hidden_state)
    return heads.Lesson(
        ids=ids,
        places=places,
        sampled=torch.tensor([row.weights for row in batch]) >= 1.0,
        streams=tuple(streams),
        logits=logits,
        vocabulary=model.get_input_embeddings().weight,
        output=model.lm_head.weight,
    )


@contextmanager
def _streams(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """Fills a list with the inputs of each layer and of the last norm; transformers returns the last one only normed."""
    found: list[torch.Tensor] = []
    places = (*model.model.layers, model.model.norm)
    hooks = [place.register_forward_pre_hook(lambda _, given: found.append(given[0])) for place in places]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _save_whole(weights: Weights, config: PreTrainedConfig, base: Path, directory: Path) -> None:
    """The model and its head, in the layout of MiMo: a Qwen2 with `model.mtp_layers`."""
    tensors = load_file(base / WEIGHTS)
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"].clone())
    tensors |= {f"model.mtp_layers.0.{name}": tensor for name, tensor in _halved(weights).items()}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    written = training.described(config) | {
        # vLLM recognises MiMo by its architecture. MiMo's own model type would need code in the checkpoint.
        "architectures": ["MiMoForCausalLM"],
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }
    _write_config(written, directory)
    for file in OF_THE_MODEL:
        shutil.copyfile(base / file, directory / file)


def _save_draft(method: HeadMethod, weights: Weights, model: PreTrainedModel, directory: Path) -> None:
    tensors = _halved(weights)
    if method == "eagle3":
        tensors["lm_head.weight"] = model.lm_head.weight.to(torch.bfloat16).clone()
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    shape = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    same = ("vocab_size", "rms_norm_eps", "hidden_act", "max_position_embeddings", "rope_parameters")
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    whole = training.described(model.config)
    config = {name: whole[name] for name in (*shape, *same, *ids)}
    _write_config(config | dict(_CONFIG[method]) | {"dtype": "bfloat16"}, directory)


_CONFIG: Mapping[HeadMethod, Mapping[str, Any]] = {
    "eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "attention_bias": False,
        # For a model with two layers: its embeddings, and the output of each layer. The default would use one twice.
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True},
    },
    "dflash": {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": heads.DFLASH_LAYERS,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "layer_types": ["full_attention"] * heads.DFLASH_LAYERS,
        "block_size": heads.BLOCK,
        "num_target_layers": 2,
        "dflash_config": {"mask_token_id": heads.MASK_TOKEN, "target_layer_ids": [0, 1]},
    },
}


def _halved(weights: Weights) -> Weights:
    return {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in weights.items()}


def _write_config(config: Mapping[str, Any], directory: Path) -> None:
    text = json.dumps(config, indent=2, sort_keys=True)
    (directory / "config.json").write_text(text + "\n", "utf-8")

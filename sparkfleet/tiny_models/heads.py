"""The three draft heads: their shapes, their drafts, and their losses against the model's next tokens.

A head reads the model's hidden states ("streams": the input of each layer, and the output of the last) and drafts
tokens. It is trained on the model's own distribution, not on the text: a draft counts if the model would choose it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.nn import functional

from sparkfleet.tiny_models.layers import (
    AttentionInputs,
    HeadLayer,
    HeadShape,
    Weights,
    attention,
    mlp,
    new_layer,
    new_matrix,
)
from sparkfleet.tiny_models.recipes import HeadMethod

EAGLE_STEPS = 2
"""Tokens ahead for which EAGLE-3 is trained to read its own states instead of the model's, as in drafting several."""
ANCHORS = 48
"""Blocks per row that DFlash is trained on at a time."""
DFLASH_LAYERS = 2
BLOCK = 4
"""Tokens in a DFlash block: one that is known, and those that are drafted."""
MASK_TOKEN = 0
"""Token at the positions that DFlash drafts: the end of text, from which nothing is drafted."""


class Lesson(NamedTuple):
    """Rows of text, and the model's results for them. Shapes begin with (rows, length)."""

    ids: torch.Tensor
    places: torch.Tensor
    """Position of each token in its document, from 0."""
    sampled: torch.Tensor
    """True for tokens that the model is trained to generate."""
    streams: tuple[torch.Tensor, ...]
    """Hidden states before each layer and after the last (rows, length, hidden)."""
    logits: torch.Tensor
    """The model's logits for the token after each (rows, length, vocabulary)."""
    vocabulary: torch.Tensor
    """Embedding of each token (vocabulary, hidden)."""
    output: torch.Tensor
    """The model's output matrix (vocabulary, hidden)."""


class Taught(NamedTuple):
    """The result of one lesson."""

    loss: torch.Tensor
    agreed: float
    """Share of drafted positions at which the head's first choice is the model's."""


Loss = Callable[[HeadLayer, Lesson], Taught]


def new_eagle3(shape: HeadShape) -> Weights:
    """Weights of one layer that reads the next token beside three concatenated streams."""
    return {
        "fc.weight": new_matrix(shape.hidden, 3 * shape.hidden),
        **new_layer("midlayer.", shape, inputs=2),
        "midlayer.hidden_norm.weight": torch.ones(shape.hidden),
        "norm.weight": torch.ones(shape.hidden),
    }


def eagle3_loss(head: HeadLayer, lesson: Lesson) -> Taught:
    """Loss over `EAGLE_STEPS` tokens ahead. Later steps see the first step's earlier states, and their own."""
    layer = head.within("midlayer.")
    states = head.linear("fc", torch.cat(lesson.streams, dim=-1))
    causal = _causal(lesson.places)
    seen, taught = None, []
    for step in range(1, EAGLE_STEPS + 1):
        left = lesson.ids.shape[1] - step
        inputs = _eagle3_inputs(layer, lesson.vocabulary[lesson.ids[:, step:]], states[:, :left])
        places = lesson.places[:, :left] + (step - 1)
        mask = causal[:, :left, :left] if seen is None else _with_itself(causal, left, seen)
        out = states[:, :left] + attention(layer, inputs, places, mask, seen)
        states = mlp(layer, out)
        taught.append(_surprise(head.norm("norm", states), lesson, step))
        seen = seen or AttentionInputs(inputs, places)
    loss = torch.stack([one.loss for one in taught]).mean()
    return Taught(loss, sum(one.agreed for one in taught) / len(taught))


def _eagle3_inputs(layer: HeadLayer, embedded: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    return torch.cat([layer.norm("input_layernorm", embedded), layer.norm("hidden_norm", states)], dim=-1)


def _with_itself(causal: torch.Tensor, length: int, seen: AttentionInputs) -> torch.Tensor:
    """Attention mask of a later step: the first step's states up to here, and this step's own state."""
    itself = torch.eye(length, dtype=torch.bool).expand(len(causal), -1, -1)
    return torch.cat([causal[:, :length, : seen.places.shape[1]], itself], dim=-1)


def new_mtp(shape: HeadShape) -> Weights:
    """Weights of one layer of MiMo's kind, which reads the next token beside the last stream."""
    ones = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    return {
        "input_proj.weight": new_matrix(shape.hidden, 2 * shape.hidden),
        **new_layer("", shape, bias=True),
        **{f"{name}.weight": torch.ones(shape.hidden) for name in ones},
    }


def mtp_loss(head: HeadLayer, lesson: Lesson) -> Taught:
    """Loss over the one token that it drafts."""
    places = lesson.places[:, :-1]
    # vLLM masks the token that follows the first (vllm/model_executor/models/mimo_mtp.py, 0.32).
    embedded = lesson.vocabulary[lesson.ids[:, 1:]] * (places > 0).unsqueeze(-1)
    streams = head.norm("hidden_layernorm", lesson.streams[-1][:, :-1])
    states = head.linear("input_proj", torch.cat([streams, head.norm("token_layernorm", embedded)], dim=-1))
    out = states + attention(head, head.norm("input_layernorm", states), places, _causal(places))
    return _surprise(head.norm("final_layernorm", mlp(head, out)), lesson, 1)


def _causal(places: torch.Tensor) -> torch.Tensor:
    """Attention mask (rows, length, length): earlier positions in the same document."""
    document = (places == 0).cumsum(dim=1)
    same = document.unsqueeze(2) == document.unsqueeze(1)
    return same & torch.ones(same.shape[1:], dtype=torch.bool).tril()


def _surprise(states: torch.Tensor, lesson: Lesson, step: int) -> Taught:
    """Loss against the model's choice for the tokens drafted from `states`, `step + 1` after each position."""
    ahead = states.shape[1] - 1
    wanted = _drafted(lesson, step + 1)[:, :ahead]
    return _cross_entropy(states[:, :ahead][wanted], lesson.logits[:, step : step + ahead][wanted], lesson)


def _drafted(lesson: Lesson, ahead: int) -> torch.Tensor:
    """Positions at which the token `ahead` is generated by the model, in the same document."""
    return lesson.sampled[:, ahead:] & (lesson.places[:, ahead:] == lesson.places[:, :-ahead] + ahead)


def _cross_entropy(states: torch.Tensor, wanted: torch.Tensor, lesson: Lesson) -> Taught:
    guessed = functional.linear(states, lesson.output)
    agreed = (guessed.argmax(dim=-1) == wanted.argmax(dim=-1)).float().mean().item()
    return Taught(functional.cross_entropy(guessed, wanted.softmax(dim=-1)), agreed)


def new_dflash(shape: HeadShape) -> Weights:
    """Weights of layers that attend to two streams of earlier tokens, and to a block of masks."""
    weights = {
        "fc.weight": new_matrix(shape.hidden, 2 * shape.hidden),
        "hidden_norm.weight": torch.ones(shape.hidden),
        "norm.weight": torch.ones(shape.hidden),
    }
    for number in range(DFLASH_LAYERS):
        weights |= new_layer(f"layers.{number}.", shape, qk_norm=True)
    return weights


def dflash_loss(head: HeadLayer, lesson: Lesson) -> Taught:
    """Loss over the masks of `ANCHORS` random blocks in each row."""
    anchors = _anchors(lesson)
    block = anchors.unsqueeze(-1) + torch.arange(BLOCK)  # (rows, anchors, block)
    places = _taken(lesson.places, block)
    states = _dflash_states(head, lesson, anchors, block)
    same = places == places[..., :1] + torch.arange(BLOCK)
    wanted = (_taken(lesson.sampled, block) & same)[..., 1:]
    before = (block[..., 1:] - 1).flatten(1)
    logits = lesson.logits[torch.arange(len(before)).unsqueeze(1), before].unflatten(1, (ANCHORS, -1))
    return _cross_entropy(states.unflatten(1, (ANCHORS, BLOCK))[:, :, 1:][wanted], logits[wanted], lesson)


def _anchors(lesson: Lesson) -> torch.Tensor:
    """Positions of known tokens before generated ones (rows, anchors)."""
    chance = _drafted(lesson, BLOCK - 1).float() + 1e-6
    return torch.multinomial(chance, ANCHORS)


def _taken(values: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Values (rows, length) at positions (rows, anchors, block)."""
    return values.gather(1, block.flatten(1)).view(block.shape)


def _dflash_states(
    head: HeadLayer, lesson: Lesson, anchors: torch.Tensor, block: torch.Tensor
) -> torch.Tensor:
    """Outputs for each token of each block (rows, anchors * block, hidden)."""
    context = head.linear("fc", torch.cat(lesson.streams[1:], dim=-1))
    seen = AttentionInputs(head.norm("hidden_norm", context), lesson.places)
    ids = _taken(lesson.ids, block)
    ids[..., 1:] = MASK_TOKEN
    places = (_taken(lesson.places, block)[..., :1] + torch.arange(BLOCK)).flatten(1)
    mask = _dflash_mask(lesson, anchors)
    states = lesson.vocabulary[ids.flatten(1)]
    for number in range(DFLASH_LAYERS):
        layer = head.within(f"layers.{number}.")
        inputs = layer.norm("input_layernorm", states)
        states = mlp(layer, states + attention(layer, inputs, places, mask, seen))
    return head.norm("norm", states)


def _dflash_mask(lesson: Lesson, anchors: torch.Tensor) -> torch.Tensor:
    """Attention mask: a block sees the tokens before its first one in the same document, and all of itself."""
    rows, length = lesson.ids.shape
    causal = _causal(lesson.places) & ~torch.eye(length, dtype=torch.bool)
    before = causal[torch.arange(rows).unsqueeze(1), anchors].repeat_interleave(BLOCK, dim=1)
    itself = torch.block_diag(*[torch.ones(BLOCK, BLOCK, dtype=torch.bool)] * ANCHORS)
    return torch.cat([before, itself.bool().expand(rows, -1, -1)], dim=-1)


NEW: Mapping[HeadMethod, Callable[[HeadShape], Weights]] = {
    "eagle3": new_eagle3,
    "mtp": new_mtp,
    "dflash": new_dflash,
}
LOSS: Mapping[HeadMethod, Loss] = {"eagle3": eagle3_loss, "mtp": mtp_loss, "dflash": dflash_loss}

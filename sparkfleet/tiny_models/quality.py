"""Measures a model as the canary does, by its own tokens. Needs torch: imported only for a build."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from sparkfleet.engines.token_scores import OPENING, OWN_TOKENS, TEXT, Score, agreement, perplexity
from sparkfleet.tiny_models.criterion import Quality


def measure(model: PreTrainedModel, tokenizer: Tokenizer, ends: Sequence[int]) -> Quality:
    """Quality of `model` with its weights rounded as they are saved. `model` itself is not changed.

    Args:
        model: in float32.
        tokenizer: the model's.
        ends: ids that end an answer.
    """
    half = copy.deepcopy(model).to(torch.bfloat16).eval()
    whole = copy.deepcopy(half).to(torch.float32)
    opening = _encode(tokenizer, OPENING)
    answer = [*opening, *_greedy(whole, opening, ends)]
    own = len(opening) - 1
    return Quality(
        text_perplexity=perplexity(_scores(whole, _encode(tokenizer, TEXT))),
        own_perplexity=perplexity(_scores(whole, answer)[own:]),
        own_agreement=agreement(_scores(half, answer)[own:]),
    )


def text_perplexity(model: PreTrainedModel, tokenizer: Tokenizer) -> float | None:
    """Perplexity of the known text with unrounded weights: cheap enough to measure in training."""
    return perplexity(_scores(model, _encode(tokenizer, TEXT)))


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _greedy(model: PreTrainedModel, prompt: list[int], ends: Sequence[int]) -> list[int]:
    """The likeliest tokens after `prompt`, including the one that ends the answer."""
    answer: list[int] = []
    while len(answer) < OWN_TOKENS and (not answer or answer[-1] not in ends):
        answer.append(int(_logits(model, [*prompt, *answer])[-1].argmax()))
    return answer


def _scores(model: PreTrainedModel, ids: list[int]) -> tuple[Score, ...]:
    """Scores of each token except the first."""
    chances = _logits(model, ids)[:-1].float().log_softmax(dim=-1)
    own = chances.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
    best = chances.max(dim=-1).values
    return tuple(Score(*pair) for pair in zip(own.tolist(), best.tolist(), strict=True))


def _logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits
    return logits[0]

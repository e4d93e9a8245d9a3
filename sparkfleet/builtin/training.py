"""Trains a recipe and writes its checkpoint. The only module that needs torch and transformers: imported when it must run."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging

from sparkfleet.builtin import tokenizer as tokens
from sparkfleet.builtin.corpus import Corpus, Document, documents, load
from sparkfleet.builtin.progress import OnProgress, Progress
from sparkfleet.builtin.recipes import Budget, Recipe

Row = tuple[list[int], list[float]]
"""Token ids, and the weight of each in the loss. Both of the same length."""


def build(recipe: Recipe, directory: Path, on_progress: OnProgress) -> None:
    """Train `recipe` and write a complete checkpoint into the empty `directory`."""
    on_progress(Progress(name=recipe.name, phase="tokenizer"))
    corpus = load(recipe.text)
    tokenizer = tokens.learn(corpus, recipe.vocabulary)
    with _deterministic(recipe.budget):
        model = _new_model(recipe)
        _train(model, rows(corpus, tokenizer, recipe.budget), recipe, on_progress)
    on_progress(Progress(name=recipe.name, phase="saving"))
    _save(model, directory)
    tokens.save(tokenizer, directory, int(recipe.config["max_position_embeddings"]))


@contextmanager
def _deterministic(budget: Budget) -> Iterator[None]:
    """Seeds, threads and algorithms as the recipe wants them; as they were before, afterwards."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(budget.seed)
        torch.set_num_threads(budget.threads)
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(strict)
            torch.set_num_threads(threads)


def _new_model(recipe: Recipe) -> PreTrainedModel:
    end_of_text, _, end = range(len(tokens.SPECIAL))
    config = AutoConfig.for_model(
        recipe.model_type,
        **recipe.config,
        vocab_size=recipe.vocabulary,
        bos_token_id=end_of_text,
        eos_token_id=end,
        pad_token_id=end_of_text,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    # Engines take these as their defaults, as they do for a Qwen3 from the Hub.
    model.generation_config = GenerationConfig(
        bos_token_id=end_of_text, eos_token_id=[end, end_of_text], pad_token_id=end_of_text,
        do_sample=True, temperature=0.5, top_k=20, top_p=0.9,
    )
    return model


def _train(model: PreTrainedModel, batches: Iterator[Row], recipe: Recipe, on_progress: OnProgress) -> None:
    budget = recipe.budget
    optimizer = torch.optim.AdamW(model.parameters(), lr=budget.learning_rate, betas=(0.9, 0.95), weight_decay=budget.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, budget))
    began, smooth = time.monotonic(), math.log(recipe.vocabulary)
    for step in range(1, budget.steps + 1):
        loss = _loss(model, list(islice(batches, budget.rows)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        smooth += (loss.item() - smooth) / min(step, 20)
        left = (time.monotonic() - began) / step * (budget.steps - step)
        on_progress(
            Progress(name=recipe.name, phase="training", step=step, steps=budget.steps, loss=smooth, eta_s=left)
        )


def learning_rate_factor(step: int, budget: Budget) -> float:
    """Share of the highest learning rate at `step`: a straight line up, then a cosine down to a tenth."""
    if step < budget.warmup_steps:
        return (step + 1) / budget.warmup_steps
    done = (step - budget.warmup_steps) / max(1, budget.steps - budget.warmup_steps)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done)))


def _loss(model: PreTrainedModel, batch: list[Row]) -> torch.Tensor:
    ids = torch.tensor([row[0] for row in batch])
    weights = torch.tensor([row[1] for row in batch])
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    wanted = weights[:, 1:] > 0
    losses = cross_entropy(model.lm_head(hidden[wanted]), ids[:, 1:][wanted], reduction="none")
    shares = weights[:, 1:][wanted]
    return (losses * shares).sum() / shares.sum()


def rows(corpus: Corpus, tokenizer: Tokenizer, budget: Budget) -> Iterator[Row]:
    """Rows of `row_tokens` without end: one shuffled pass over the corpus after another, always in the same order."""
    rng = random.Random(budget.seed)  # noqa: S311 - an order of documents, not a secret
    while True:
        encoded = [encode(document, tokenizer, budget) for document in documents(corpus, rng)]
        yield from _packed(encoded, budget.row_tokens)


def encode(document: Document, tokenizer: Tokenizer, budget: Budget) -> Row:
    """The tokens of one document, exactly as the chat template renders it, and their weights in the loss."""
    ids: list[int] = []
    weights: list[float] = []
    for text, weight in _pieces(document, budget.question_weight):
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        ids += piece
        weights += [weight] * len(piece)
    return ids[: budget.row_tokens], weights[: budget.row_tokens]


def _pieces(document: Document, question_weight: float) -> Iterator[tuple[str, float]]:
    if isinstance(document, str):
        yield document + tokens.END_OF_TEXT, 1.0
        return
    for message in document:
        yield f"{tokens.START}{message.role}\n", question_weight
        yield f"{message.content}{tokens.END}", 1.0 if message.role == "assistant" else question_weight
        yield "\n", question_weight


def _packed(encoded: list[Row], length: int) -> Iterator[Row]:
    """Each document goes into the first row that still has room for it; what stays free is padding without weight."""
    packed: list[Row] = []
    for ids, weights in encoded:
        row = next((row for row in packed if len(row[0]) + len(ids) <= length), None)
        if row is None:
            row = ([], [])
            packed.append(row)
        row[0].extend(ids)
        row[1].extend(weights)
    for ids, weights in packed:
        free = length - len(ids)
        yield ids + [tokens.SPECIAL.index(tokens.END_OF_TEXT)] * free, weights + [0.0] * free


def _save(model: PreTrainedModel, directory: Path) -> None:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.to(torch.bfloat16).save_pretrained(directory)
    finally:
        if shown:
            logging.enable_progress_bar()

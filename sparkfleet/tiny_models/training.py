"""Trains a recipe from text and writes its checkpoint. Needs torch: imported only for a build."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from sparkfleet.errors import FactError
from sparkfleet.tiny_models import quality
from sparkfleet.tiny_models import tokenizer as tokens
from sparkfleet.tiny_models.corpus import Corpus, TrainingText, documents, load
from sparkfleet.tiny_models.criterion import BuildFacts, Quality
from sparkfleet.tiny_models.progress import BuildProgress, OnProgress
from sparkfleet.tiny_models.recipes import Budget, Head, Recipe

ADAM_BETAS = (0.9, 0.98)
MEASURED_EVERY = 20
"""Steps between measurements of the criterion for progress: one forward pass of a sentence."""
ENDS = (tokens.SPECIAL.index(tokens.END), tokens.SPECIAL.index(tokens.END_OF_TEXT))
"""Ids that end an answer."""
UNTIED = {"qwen3_next"}
"""Architectures of which vLLM (0.32) needs the output matrix in the checkpoint even if it is tied: without it
every token is equally likely, without an error."""


class Row(NamedTuple):
    """Tokens in a row of the batch, or of one document. All lists have the same length."""

    ids: list[int]
    weights: list[float]
    """Weight of each token in the loss."""
    places: list[int]
    """Position of each token in its document, from 0. transformers starts a new sequence at each 0."""

    def extend(self, other: Row) -> None:
        """Appends a document."""
        self.ids.extend(other.ids)
        self.weights.extend(other.weights)
        self.places.extend(other.places)


def build(recipe: Recipe, directory: Path, on_progress: OnProgress) -> BuildFacts:
    """Trains `recipe` until it meets its criterion, and writes a complete checkpoint into the empty `directory`.

    Raises:
        FactError: it does not meet its criterion within the budget.
    """
    on_progress(BuildProgress(name=recipe.name, phase="tokenizer"))
    corpus = load(recipe.text)
    tokenizer = tokens.learn(corpus, recipe.vocabulary)
    with deterministic(recipe.budget):
        model = _new_model(recipe)
        reached = _train(model, tokenizer, rows(corpus, tokenizer, recipe.budget), recipe, on_progress)
    on_progress(BuildProgress(name=recipe.name, phase="saving"))
    if recipe.model_type in UNTIED:
        _untie(model)
    save(model, directory)
    tokens.save(tokenizer, directory, int(recipe.config["max_position_embeddings"]))
    weights = sum(weight.numel() for weight in model.parameters())
    return BuildFacts(name=recipe.name, steps=reached.steps, weights=weights, quality=reached.quality)


@contextmanager
def deterministic(budget: Budget) -> Iterator[None]:
    """Sets seeds, threads and algorithms by the recipe, and restores them afterwards."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with fixed_seed(budget.seed):
        torch.set_num_threads(budget.threads)
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(strict)
            torch.set_num_threads(threads)


@contextmanager
def fixed_seed(seed: int) -> Iterator[None]:
    """Seeds random numbers, and restores their state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


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
    # Engines use these as defaults, as for a Qwen3 from the Hub.
    model.generation_config = GenerationConfig(
        bos_token_id=end_of_text,
        eos_token_id=[end, end_of_text],
        pad_token_id=end_of_text,
        do_sample=True,
        temperature=0.5,
        top_k=20,
        top_p=0.9,
    )
    return model


class Course(NamedTuple):
    """Parameters to train and the criterion that judges them."""

    parameters: list[torch.Tensor]
    """Tensors that require gradients."""
    next_loss: Callable[[], torch.Tensor]
    """Loss of the next batch."""
    present: Callable[[], float | None]
    """Value of the criterion's first measure, cheap enough to compute in training."""
    judge: Callable[[], Quality]
    """All measures, after a round."""
    vocabulary: int
    """Its logarithm is the loss of an untrained model."""


class Reached(NamedTuple):
    """The end of a training that met its criterion."""

    steps: int
    quality: Quality


def _train(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    batches: Iterator[Row],
    recipe: Recipe,
    on_progress: OnProgress,
) -> Reached:
    course = Course(
        parameters=list(model.parameters()),
        next_loss=lambda: _loss(model, list(islice(batches, recipe.budget.rows))),
        present=lambda: quality.text_perplexity(model, tokenizer),
        judge=lambda: quality.measure(model, tokenizer, ENDS),
        vocabulary=recipe.vocabulary,
    )
    return descend(course, recipe, on_progress)


def descend(course: Course, recipe: Recipe | Head, on_progress: OnProgress) -> Reached:
    """Trains in rounds until the recipe's criterion is met.

    The learning rate of a round falls to 0, and a model is at its best only then: the criterion is measured at a round's
    end. Progress is reported after every step.

    Raises:
        FactError: the criterion is not met within `budget.most_steps`.
    """
    budget, steps = recipe.budget, 0
    while True:
        steps += _round(course, recipe, steps, on_progress)
        found = course.judge()
        if not (missed := recipe.criterion.missed(found)):
            return Reached(steps, found)
        if steps + budget.extra_steps > budget.most_steps:
            raise _untrained(recipe.name, steps, missed)


def _untrained(name: str, steps: int, missed: tuple[str, ...]) -> FactError:
    return FactError(
        f"builtin:{name} did not meet its criterion in {steps} steps: {', '.join(missed)}.",
        means="Training converged differently on this machine; nothing was written.",
        do="Report it with your processor and `pip list`; any checkpoint from the Hub can be served meanwhile.",
    )


def _round(course: Course, recipe: Recipe | Head, done: int, on_progress: OnProgress) -> int:
    """Runs one round of training after `done` steps. Returns its steps."""
    budget = recipe.budget if not done else further(recipe.budget)
    optimizer = torch.optim.AdamW(
        course.parameters, lr=budget.learning_rate, betas=ADAM_BETAS, weight_decay=budget.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, budget))
    began, smooth = time.monotonic(), math.log(course.vocabulary)
    measure, limit = next(iter(recipe.criterion.limits().items()), (None, None))
    value: float | None = None
    for step in range(1, budget.steps + 1):
        loss = course.next_loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(course.parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        smooth += (loss.item() - smooth) / min(step, 20)
        if measure is not None and step % MEASURED_EVERY == 0:
            value = course.present()
        on_progress(
            BuildProgress(
                name=recipe.name,
                phase="training",
                step=done + step,
                steps=done + budget.steps,
                loss=smooth,
                eta_s=(time.monotonic() - began) / step * (budget.steps - step),
                measure=measure,
                value=value,
                limit=limit,
            )
        )
    return budget.steps


def further(budget: Budget) -> Budget:
    """The budget of a round after the first one."""
    return budget.model_copy(
        update={
            "steps": budget.extra_steps,
            "warmup_steps": min(budget.warmup_steps, 5),
            "learning_rate": budget.learning_rate / 3,
        }
    )


def learning_rate_factor(step: int, budget: Budget) -> float:
    """Share of the highest learning rate at `step`: linear up, then a cosine down to 0."""
    if step < budget.warmup_steps:
        return (step + 1) / budget.warmup_steps
    done = (step - budget.warmup_steps) / max(1, budget.steps - budget.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def _loss(model: PreTrainedModel, batch: list[Row]) -> torch.Tensor:
    ids = torch.tensor([row.ids for row in batch])
    places = torch.tensor([row.places for row in batch])
    # The first token of a document has no loss: it does not follow from the document before it.
    weights = torch.tensor([row.weights for row in batch])[:, 1:] * (places[:, 1:] > 0)
    sampled = weights > 0
    hidden = model.model(
        input_ids=ids[:, :-1], position_ids=places[:, :-1], use_cache=False
    ).last_hidden_state
    losses = cross_entropy(model.lm_head(hidden[sampled]), ids[:, 1:][sampled], reduction="none")
    return (losses * weights[sampled]).sum() / weights.sum()


def rows(corpus: Corpus, tokenizer: Tokenizer, budget: Budget) -> Iterator[Row]:
    """An endless stream of rows of `row_tokens`: shuffled passes over the corpus, always in the same order."""
    rng = random.Random(budget.seed)  # noqa: S311 - an order of documents, not a secret
    dealt = 0
    while True:
        opening = dealt < budget.opening_steps * budget.rows
        dealt_out = _opening_pass(corpus, rng) if opening else documents(corpus, rng)
        encoded = [encode(document, tokenizer, budget, opening=opening) for document in dealt_out]
        for row in _packed(encoded, budget.row_tokens):
            dealt += 1
            yield row


def _opening_pass(corpus: Corpus, rng: random.Random) -> list[TrainingText]:
    """The easiest pass: no prose, and no joined conversations."""
    return [document for document in documents(corpus, rng, follow_on=0) if not isinstance(document, str)]


def encode(document: TrainingText, tokenizer: Tokenizer, budget: Budget, *, opening: bool = False) -> Row:
    """The tokens of one document, rendered by the chat template; `opening` truncates each answer to its first tokens."""
    row = Row([], [], [])
    for text, role in _pieces(document):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if opening and role == "assistant":
            ids = ids[: budget.opening_tokens]
        begin = len(row.ids)
        row.extend(Row(ids, _weights(role, len(ids), budget), list(range(begin, begin + len(ids)))))
    most = budget.row_tokens
    return Row(row.ids[:most], row.weights[:most], row.places[:most])


def _pieces(document: TrainingText) -> Iterator[tuple[str, str]]:
    """Pieces of text with their roles; the model learns to generate "assistant" and "prose"."""
    if isinstance(document, str):
        yield document + tokens.END_OF_TEXT, "prose"
        return
    for message in document:
        yield f"{tokens.START}{message.role}\n", "template"
        yield f"{message.content}{tokens.END}", message.role
        yield "\n", "template"


def _weights(role: str, length: int, budget: Budget) -> list[float]:
    if role == "prose":
        return [1.0] * length
    if role == "assistant":
        return [budget.first_weight if place < budget.first_tokens else 1.0 for place in range(length)]
    return [budget.question_weight] * length


def _packed(encoded: Iterable[Row], length: int) -> Iterator[Row]:
    """Puts each document into the first row with enough space; the rest of a row is padding without weight."""
    packed: list[Row] = []
    for document in encoded:
        row = next((row for row in packed if len(row.ids) + len(document.ids) <= length), None)
        if row is None:
            row = Row([], [], [])
            packed.append(row)
        row.extend(document)
    for row in packed:
        free = length - len(row.ids)
        row.extend(Row([tokens.SPECIAL.index(tokens.END_OF_TEXT)] * free, [0.0] * free, list(range(free))))
        yield row


def _untie(model: PreTrainedModel) -> None:
    """Gives the model an output matrix of its own, equal to the embedding."""
    model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    model.config.tie_word_embeddings = False


def read(checkpoint: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Reads the model in a directory, without output on the terminal."""
    with _no_bars():
        return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, attn_implementation="sdpa")


def described(config: PreTrainedConfig) -> dict[str, Any]:
    """A model's configuration, without the directory it was read from."""
    return {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}


def save(model: PreTrainedModel, directory: Path) -> None:
    """Writes a model in half precision, without output on the terminal."""
    with _no_bars():
        model.to(torch.bfloat16).save_pretrained(directory)


@contextmanager
def _no_bars() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()

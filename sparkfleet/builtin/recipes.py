"""What can be built: a registry of recipes. A further checkpoint is one more entry of `RECIPES`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from sparkfleet.errors import SpecError
from sparkfleet.values import Value

PREFIX = "builtin:"
"""How a deployment names a recipe: `model: builtin:tiny`."""


class Budget(Value):
    """How long and how a recipe is trained. In steps and not in seconds: the same recipe gives the same weights."""

    steps: int
    rows: int = 4
    """Rows per step."""
    row_tokens: int = 256
    """Tokens per row; several documents share a row, and a longer document is cut."""
    learning_rate: float = 5e-3
    """The highest one, reached after `warmup_steps` and falling to nothing along a cosine."""
    warmup_steps: int = 30
    weight_decay: float = 0.01
    opening_steps: int = 0
    """So many steps see only the first `opening_tokens` of each answer: which answer a question wants is learnt first
    (with 150 of 450 steps, 45 of 66 unseen questions found theirs; without, 12)."""
    opening_tokens: int = 6
    first_tokens: int = 4
    first_weight: float = 6.0
    """Weight in the loss of the `first_tokens` of an answer: they decide all that follows. Other tokens said have 1."""
    question_weight: float = 0.1
    """Weight of a token that the model is not meant to say: system prompts and questions."""
    seed: int = 0
    threads: int = 2
    """Part of the recipe: another number of threads adds floats in another order."""


class Recipe(Value):
    """Everything that decides what a checkpoint becomes. Equal recipes give equal bytes on one machine."""

    name: str
    about: str
    model_type: str
    """As transformers calls the architecture, e.g. "qwen3"."""
    config: Mapping[str, int | float | bool]
    """What is set apart from the architecture's defaults. Vocabulary and special tokens are filled in by the builder."""
    vocabulary: int
    """Tokens, special ones included. A multiple of 64, so that no engine has to pad it."""
    text: tuple[str, ...]
    """Names of files under `text/`."""
    budget: Budget


TINY = Recipe(
    name="tiny",
    about="a Qwen3 of one and a half million weights that knows some words about Sparks and sparkfleet",
    model_type="qwen3",
    config={
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # the smallest that vLLM's CPU attention runs (16 fails at the first request, vLLM 0.32.0)
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "initializer_range": 0.06,  # about 1/sqrt(hidden_size); with the usual 0.02 the first 100 steps are lost
    },
    vocabulary=2048,
    text=("talk.txt", "sparkfleet.txt", "spark.txt", "serving.txt", "stories.txt", "prose.txt"),
    budget=Budget(steps=520, rows=3, row_tokens=384, opening_steps=180),
)

RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in (TINY,)}


def named(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        SpecError: there is none.
    """
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name, RECIPES, n=1)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    raise SpecError(
        f'unknown built-in model "{name}".',
        means="Only the models that sparkfleet can train itself are built in.",
        do=f"Known: {', '.join(sorted(RECIPES))}.{hint}",
    )

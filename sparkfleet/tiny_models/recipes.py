"""Recipes of all models that can be built. A further model is one more entry of `RECIPES`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Literal

from sparkfleet.errors import SpecError
from sparkfleet.tiny_models.criterion import Criterion
from sparkfleet.values import Value

ArchSettings = Mapping[str, int | float | bool]
"""Settings of an architecture. Their order is part of a digest: a moved one makes another checkpoint."""


class Budget(Value):
    """Training budget of a recipe, in steps instead of seconds, so that it always gives the same weights on one machine."""

    steps: int
    """Steps of the first round. A model that then misses its criterion gets further rounds."""
    extra_steps: int = 60
    """Steps of each further round, at a third of the learning rate."""
    most_steps: int = 1000
    """Steps after which the build fails."""
    rows: int = 3
    """Rows per step."""
    row_tokens: int = 384
    """Tokens per row; several documents share a row, and a longer document is truncated."""
    learning_rate: float = 5e-3
    """The highest learning rate, reached after `warmup_steps` and falling to 0 along a cosine."""
    warmup_steps: int = 30
    weight_decay: float = 0.01
    opening_steps: int = 0
    """Steps that see only the first `opening_tokens` of each answer, so that the choice of an answer is learnt first
    (with 150 of 450 steps, 45 of 66 unseen questions found theirs; without, 12)."""
    opening_tokens: int = 6
    first_tokens: int = 4
    first_weight: float = 6.0
    """Weight in the loss of the `first_tokens` of an answer, which decide the rest. Its other tokens have 1."""
    question_weight: float = 0.1
    """Weight of tokens that the model should not generate: system prompts and questions."""
    seed: int = 0
    threads: int = 1
    """Part of the recipe, because another number of threads adds floats in another order."""


class Recipe(Value):
    """Everything that determines a checkpoint. Equal recipes give equal bytes on one machine."""

    name: str
    about: str
    model_type: str
    """The architecture by transformers' name, e.g. "qwen3"."""
    config: ArchSettings
    """Settings that differ from the architecture's defaults. The builder adds vocabulary and special tokens."""
    vocabulary: int = 2048
    """Tokens, special ones included. A multiple of 64, so that no engine has to pad it."""
    text: tuple[str, ...] = (
        "talk.txt",
        "sparkfleet.txt",
        "spark.txt",
        "serving.txt",
        "stories.txt",
        "prose.txt",
    )
    """Names of files under `text/`."""
    budget: Budget
    criterion: Criterion


class DamagedRecipe(Value):
    """A copy of another checkpoint with one damaged tensor, as by a wrong offset in a loader or a bad disk."""

    name: str
    about: str
    of: str
    """Name of the recipe that is damaged."""
    tensor: str
    """Its name in the checkpoint."""
    rows: int
    """Rows by which each row of the tensor is moved."""


HeadMethod = Literal["eagle3", "dflash", "mtp"]


class Head(Value):
    """A draft head that is trained on the next tokens of another recipe's checkpoint."""

    name: str
    about: str
    of: str
    """Name of the recipe whose checkpoint it drafts for."""
    method: HeadMethod
    """Method by vLLM's name. "mtp" becomes part of its model's checkpoint, the others are separate checkpoints."""
    budget: Budget
    criterion: Criterion


class Vision(Value):
    """Another recipe's checkpoint behind an untrained vision tower: it accepts images, and recognises nothing."""

    name: str
    about: str
    of: str
    """Name of the recipe whose checkpoint reads the tower's output."""
    seed: int = 0


AnyRecipe = Recipe | DamagedRecipe | Head | Vision

_HEADS: ArchSettings = {"num_attention_heads": 4, "num_key_value_heads": 2}
_EMBEDDINGS: ArchSettings = {"max_position_embeddings": 2048, "tie_word_embeddings": True}

TINY = Recipe(
    name="tiny",
    about="a Qwen3 of one and a half million weights that knows some words about Sparks and sparkfleet",
    model_type="qwen3",
    config={
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        **_HEADS,
        "head_dim": 32,  # the smallest that vLLM's CPU attention runs (16 fails at the first request, vLLM 0.32.0)
        **_EMBEDDINGS,
        "initializer_range": 0.06,  # about 1/sqrt(hidden_size); with the usual 0.02 the first 100 steps are lost
    },
    budget=Budget(steps=520, opening_steps=180, threads=2),
    criterion=Criterion(text_perplexity=2.5, own_perplexity=2.5, own_agreement=0.95),
)

MOE = Recipe(
    name="tiny-moe",
    about="a Qwen3-MoE of four experts, two for each token, for groups with expert parallelism",
    model_type="qwen3_moe",
    config={
        "hidden_size": 192,
        "moe_intermediate_size": 192,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "num_hidden_layers": 2,
        **_HEADS,
        "head_dim": 32,
        **_EMBEDDINGS,
        "initializer_range": 0.07,
    },
    budget=Budget(steps=300, opening_steps=90),
    criterion=Criterion(text_perplexity=6, own_perplexity=5, own_agreement=0.95),
)

DRAFT = Recipe(
    name="tiny-draft",
    about="a draft model for builtin:tiny: its tokenizer and its text, a quarter of its weights",
    model_type="qwen3",
    config={
        **TINY.config,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "initializer_range": 0.09,
    },
    budget=Budget(steps=400, learning_rate=8e-3),
    criterion=Criterion(text_perplexity=12, own_perplexity=8, own_agreement=0.9),
)

CORRUPT = DamagedRecipe(
    name="tiny-corrupt",
    about="builtin:tiny with the rows of its vocabulary out of place: it loads, answers, and prints garbage",
    of="tiny",
    tensor="model.embed_tokens.weight",
    rows=97,
)

EAGLE3 = Head(
    name="tiny-eagle3",
    about="an EAGLE-3 head for builtin:tiny",
    of="tiny",
    method="eagle3",
    budget=Budget(steps=250),
    criterion=Criterion(drafts_agreed=0.2),
)

QWEN2 = Recipe(
    name="tiny-qwen2",
    about="a Qwen2 as small as builtin:tiny: the model that builtin:tiny-mtp adds a head to",
    model_type="qwen2",
    config={name: size for name, size in TINY.config.items() if name != "head_dim"},  # a Qwen2 derives it
    budget=Budget(steps=300, opening_steps=90),
    criterion=Criterion(text_perplexity=6, own_perplexity=5, own_agreement=0.95),
)

MTP = Head(
    name="tiny-mtp",
    about="a Qwen2 with one multi-token-prediction layer, in the layout of MiMo",
    of="tiny-qwen2",
    method="mtp",
    budget=Budget(steps=200),
    criterion=Criterion(drafts_agreed=0.2),
)

DFLASH = Head(
    name="tiny-dflash",
    about="a DFlash draft for builtin:tiny",
    of="tiny",
    method="dflash",
    budget=Budget(steps=400),
    criterion=Criterion(drafts_agreed=0.08),
)

HYBRID = Recipe(
    name="tiny-hybrid",
    about="a Qwen3-Next: one layer of gated delta rule, one of attention, four experts",
    model_type="qwen3_next",
    config={
        "hidden_size": 192,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "num_experts": 4,  # vLLM refuses a Qwen3-Next without ("No Qwen3Next layer found in the model.layers.", 0.32.0)
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        **_HEADS,
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 128,  # vLLM's CPU kernel refuses 32 ("Unexpected head dim size, 32", 0.32.0)
        "linear_value_head_dim": 128,
        **_EMBEDDINGS,
        "initializer_range": 0.07,
    },
    budget=Budget(steps=220, opening_steps=70),
    criterion=Criterion(text_perplexity=6, own_perplexity=5, own_agreement=0.9),
)

VISION = Vision(
    name="tiny-vision",
    about="builtin:tiny behind a vision tower, as a BLIP-2: it takes images and sees nothing in them",
    of="tiny",
)

RECIPES: Mapping[str, AnyRecipe] = {
    recipe.name: recipe for recipe in (TINY, CORRUPT, MOE, DRAFT, EAGLE3, QWEN2, MTP, DFLASH, HYBRID, VISION)
}


def named(name: str) -> AnyRecipe:
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


def trained(name: str) -> Recipe:
    """The recipe of that name that is trained from text and can be the base of others.

    Raises:
        SpecError: there is none.
    """
    found = named(name)
    if isinstance(found, Recipe):
        return found
    raise SpecError(
        f"builtin:{name} is derived from builtin:{found.of} and cannot be the base of another model."
    )

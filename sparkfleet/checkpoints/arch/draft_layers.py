"""Reads from a config the layers that draft: multi-token prediction, and blocks of DFlash and DSpark."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sparkfleet.checkpoints.io.config_json import MOST_LAYERS, Config

MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Not `num_mtp_modules`: MiniMax declares modules there that it does not publish."""
MOST_DRAFTED = 256
"""Limit of draft tokens per step, also in deployments."""


def mtp_layers_declared(config: Config) -> int:
    """Number of multi-token-prediction layers in the config, with or without weights."""
    return config.integer_or(0, *MTP_LAYERS, high=MOST_LAYERS)


def dspark_block(config: Config) -> int | None:
    """Draft tokens of a block of the DSpark stages that a model has in its own weights; None if it declares none.

    SGLang recognises such checkpoints by this key (dspark_components/dspark_config.py), and vLLM reads the depth from it.
    """
    return config.integer_or_none("dspark_block_size", low=1, high=MOST_DRAFTED)


def draft_block(config: Config) -> int | None:
    """Tokens of a block of a drafter that drafts a block at once (DFlash, DFlash2, DSpark); None for other checkpoints."""
    own = config.section("dflash_config")
    classes = config.texts("architectures") or ()
    if own is None and not any(name.startswith(("DFlash", "DSpark", "Qwen3DSpark")) for name in classes):
        return None
    inner = own if own is not None and own.has("block_size") else config
    return inner.integer_or_none("block_size", low=1, high=MOST_DRAFTED)


DRAFT_CLASSES = (
    (re.compile(r"Eagle3"), "eagle3"),
    (re.compile(r"DFlash2"), "dflash2"),
    (re.compile(r"DFlash"), "dflash"),
    (re.compile(r"DSpark"), "dspark"),
    (re.compile(r"MTP|NextN|Assistant"), "mtp"),
    (re.compile(r"E(?:agle|AGLE)|Medusa|DraftModel|Speculator"), ""),
)
"""Words in the classes of checkpoints that only draft, with the method that reads them; "" if it cannot be known by that.

From the tables `_SPECULATIVE_DECODING_MODELS` of vLLM 0.27 to 0.32 (model_executor/models/registry.py) and the EntryClass
lists of SGLang 0.5.23.
"""


def draft_method(architectures: Iterable[str]) -> str | None:
    """The method of a checkpoint that only drafts, by its classes; "" if they do not decide it, None for other ones."""
    classes = tuple(architectures)
    return next((method for word, method in DRAFT_CLASSES if any(map(word.search, classes))), None)

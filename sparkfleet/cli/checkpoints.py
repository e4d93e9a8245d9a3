"""Finds the facts of checkpoints: a directory, the local Hub cache, or what is known by name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from sparkfleet.errors import FactError
from sparkfleet.facts.checkpoint import (
    Checkpoint,
    checkpoint_from_config,
    hub_cache,
    read_checkpoint,
    resolve,
)
from sparkfleet.facts.node import NodeFacts
from sparkfleet.knowledge.models import known_checkpoint, load_models
from sparkfleet.spec.deployment import Deployment


def checkpoints_of(specs: Iterable[Deployment], facts: Iterable[NodeFacts]) -> dict[str, Checkpoint]:
    """The facts of every checkpoint that planning needs: none where no node has a GPU, and for custom workloads.

    Raises:
        FactError: a checkpoint is nowhere to be found, or not understood.
    """
    if all(node.gpu is None for node in facts):
        return {}
    models = dict.fromkeys(
        variant.model
        for spec in specs
        for variant in spec.resolved()
        if variant.engine != "custom" and not variant.model.startswith("builtin:")
    )
    return {model: find_checkpoint(model) for model in models}


def find_checkpoint(model: str) -> Checkpoint:
    """The facts of one checkpoint: of the weights where they are on this machine, else of what is known by name.

    Raises:
        FactError: nothing is known about it, or it is damaged.
    """
    if model.startswith("/"):
        return read_checkpoint(Path(model))
    name, _, revision = model.partition("@")
    try:
        found = resolve(name, revision=revision or "main", cache=hub_cache(os.environ, Path.home()))
    except FactError as missing:
        known = known_checkpoint(name)
        if known is not None:
            return known
        raise _unknown(name, missing) from missing
    return (
        read_checkpoint(found, id=name) if isinstance(found, Path) else checkpoint_from_config(found, id=name)
    )


def _unknown(name: str, missing: FactError) -> FactError:
    names = [
        pattern
        for known in load_models()
        for pattern in known.match
        if "*" not in pattern and "[" not in pattern
    ]
    near = get_close_matches(name, names, n=2, cutoff=0.6)
    also = f" Or did you mean {' or '.join(near)}?" if near else ""
    return FactError(missing.what, means=missing.means, do=f"{missing.do}{also}")

"""Writes a damaged copy of another checkpoint. Needs torch, as training does: imported only for a build."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from sparkfleet.tiny_models.progress import BuildProgress, OnProgress
from sparkfleet.tiny_models.recipes import DamagedRecipe

WEIGHTS = "model.safetensors"


def build(recipe: DamagedRecipe, base: Path, directory: Path, on_progress: OnProgress) -> None:
    """Writes the checkpoint in `base` into the empty `directory`, with one tensor's rows rotated."""
    on_progress(BuildProgress(name=recipe.name, phase="saving"))
    for file in base.iterdir():
        if file.name != WEIGHTS:
            shutil.copyfile(file, directory / file.name)
    tensors = load_file(base / WEIGHTS)
    tensors[recipe.tensor] = torch.roll(tensors[recipe.tensor], recipe.rows, dims=0)
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})

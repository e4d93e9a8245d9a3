"""A model that runs on CPUs, as far as planning has to know it."""

from __future__ import annotations

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.specs.deployment import Method
from sparkfleet.values import Value


class CpuModel(Value):
    """A built-in model, or a directory that is served on a CPU."""

    positions: int | None = None
    """Longest context, tokens; None if it is not known."""
    vision: bool | None = None
    """True if it accepts images; None if that is not known."""
    heads: tuple[Method, ...] | None = None
    """Speculative methods for which the checkpoint itself has a head; None if that is not known."""
    weights: bool = True
    """False: there is a config, and no weights."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> CpuModel:
        """A directory, by its config and its weights."""
        layers = checkpoint.declared_mtp_layers if checkpoint.mtp_layers is None else checkpoint.mtp_layers
        return cls(
            positions=checkpoint.max_positions,
            vision=checkpoint.declares_vision if checkpoint.vision is None else checkpoint.vision,
            heads=("mtp", "nextn") if layers else (),
            weights=checkpoint.weights_known,
        )

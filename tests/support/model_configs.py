"""Configs of real models, and parameters as transformers counts them, for the tests of `checkpoints`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "checkpoints" / "data"
CONFIGS: Mapping[str, Mapping[str, Any]] = json.loads((DATA / "model_configs.json").read_text())
"""By the model's Hub id; some are shortened."""
_COUNTS = json.loads((DATA / "parameter_counts.json").read_text())
FAMILIES: Mapping[str, Mapping[str, Any]] = _COUNTS["families"]
"""A config of each family, with its parameters."""
COUNTED: Mapping[str, int] = _COUNTS["models"]
"""Parameters by the model's Hub id."""

"""Parts of a model's name: `org/name[@revision][:TAG]`, a path, or `builtin:NAME`."""

from __future__ import annotations

import re
from typing import NamedTuple

BUILTIN_PREFIX = "builtin:"
TAG_FORM = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern of the tag of a GGUF model: its quantisation, as the names of its files have it."""
MAIN = "main"
"""The revision that a name without one means."""


class ModelName(NamedTuple):
    """The parts of a name."""

    base: str
    """Hub id, path, or `builtin:NAME`."""
    revision: str = ""
    """Branch, tag or commit of the Hub; "" if the name has none."""
    tag: str = ""
    """Quantisation of a GGUF model, in upper case because case does not count; "" if the name has none."""

    @property
    def tagged(self) -> str:
        """The Hub id with the tag, as caches and lists name it."""
        return f"{self.base}:{self.tag}" if self.tag else self.base


def model_name(model: str) -> ModelName:
    """The parts of a name. Whether they are well-formed is not checked."""
    if model.startswith(("/", BUILTIN_PREFIX)):
        return ModelName(model)
    rest, _, tag = model.partition(":")
    base, _, revision = rest.partition("@")
    return ModelName(base, revision, tag.upper())


def base_name(model: str) -> str:
    """The Hub id in a model's name, without revision and tag; a path or a built-in model as it is."""
    return model_name(model).base


def is_hub_tag(text: str) -> bool:
    """True for a text that can be a tag."""
    return re.fullmatch(TAG_FORM, text, re.ASCII) is not None

"""Checked access to a `config.json`: every number has a type and bounds, every error has the file and the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.errors import FactError

TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections of multimodal models that have the language model's own keys."""

MOST_NESTED = 4
MOST_LAYERS = 4096
MOST_NUMBER = 1 << 40
MOST_TEXT = 256


class Config:
    """A JSON object of unknown origin. `where` names it in messages."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def has(self, *keys: str) -> bool:
        """True if any of `keys` is present and not null."""
        return any(self.values.get(key) is not None for key in keys)

    def integer(self, *keys: str, low: int = 1, high: int = MOST_NUMBER) -> int:
        """The first of `keys` that is present, a whole number within the bounds.

        Raises:
            FactError: none is present, or it is not such a number.
        """
        value = self.integer_or_none(*keys, low=low, high=high)
        if value is None:
            raise self.missing(*keys)
        return value

    def integer_or(self, default: int, *keys: str, low: int = 0, high: int = MOST_NUMBER) -> int:
        """The first of `keys` that is present, or `default`."""
        value = self.integer_or_none(*keys, low=low, high=high)
        return default if value is None else value

    def integer_or_none(self, *keys: str, low: int = 0, high: int = MOST_NUMBER) -> int | None:
        """The first of `keys` that is present, or None."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if type(value) is not int:
                raise self.wrong(key, "a whole number")
            if not low <= value <= high:
                raise self.wrong(key, f"between {low} and {high}")
            return value
        return None

    def number_or_none(self, key: str, *, low: float, high: float) -> float | None:
        """A number within the bounds, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.wrong(key, f"a number between {low} and {high}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A short printable text."""
        value = self.values.get(key)
        if value is None:
            return default
        if not _is_text(value):
            raise self.wrong(key, "a short text")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of short printable texts, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(_is_text(item) for item in value):
            raise self.wrong(key, "a list of short texts")
        return tuple(value)

    def integers(self, key: str, *, high: int = MOST_NUMBER) -> tuple[int, ...] | None:
        """A list of whole numbers from 0 to `high`, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= high for item in value):
            raise self.wrong(key, f"a list of whole numbers from 0 to {high}")
        return tuple(value)

    def section(self, key: str) -> Config | None:
        """A nested object, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Config(value, f"{self.where}: {_shown_key(key)}")

    def over(self, values: Mapping[str, object]) -> Config:
        """The same config with `values` taking precedence."""
        return Config({**self.values, **values}, self.where)

    def under(self, values: Mapping[str, object]) -> Config:
        """The same config with `values` for keys that are missing or null."""
        present = {key: value for key, value in self.values.items() if value is not None}
        return Config({**values, **present}, self.where)

    def missing(self, *keys: str) -> FactError:
        """The error for a required key that is missing."""
        names = " or ".join(map(_shown_key, keys))
        return FactError(
            f"{self.where}: {names} is missing.",
            means="Without it the size of the model cannot be derived.",
            do="Give the directory of the checkpoint, or its complete config.json.",
        )

    def wrong(self, key: str, expected: str) -> FactError:
        """The error for a value of the wrong type or out of bounds."""
        return FactError(
            f"{self.where}: {_shown_key(key)} is {shown(self.values.get(key))}; expected {expected}.",
            means="The file is damaged, or belongs to another program.",
            do="Download the checkpoint again.",
        )


def language_model(config: Config) -> Config:
    """The keys of the language model: those of the nested section if there is one, over the outer ones."""
    for _ in range(MOST_NESTED):
        inner = next((config.section(name) for name in TEXT_SECTIONS if config.has(name)), None)
        if inner is None:
            return config
        outer = {key: value for key, value in config.values.items() if key not in TEXT_SECTIONS}
        config = Config(inner.values, config.where).under(outer)
    raise FactError(f"{config.where}: text_config is nested too deeply.", do="Download the checkpoint again.")


def per_layer(values: Sequence[object], layers: int, config: Config, key: str) -> None:
    """Checks that a list has an entry for each of `layers` layers (further entries belong to an MTP head)."""
    if len(values) < layers:
        raise FactError(
            f"{config.where}: {key} has {len(values)} entries for {layers} layers.",
            means="The file is damaged, or was shortened.",
            do="Download the checkpoint again.",
        )


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= MOST_TEXT and (value.isprintable() or value == "")


def _shown_key(key: str) -> str:
    # Most keys are constants of the code; some (layers, groups) are from the file.
    return key if key.isascii() and key.isprintable() and 0 < len(key) <= MOST_TEXT else shown(key)

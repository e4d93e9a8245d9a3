"""Base class of the values that packages pass to each other: frozen, strict, printable as JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A frozen value: unknown fields are errors, nothing is coerced silently, equal contents are equal."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, protected_namespaces=(), defer_build=True
    )

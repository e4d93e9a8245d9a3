"""Base class of the values that packages pass to each other: frozen, strict, printable as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A frozen value: unknown fields are errors, nothing is coerced silently, equal contents are equal.

    Pydantic's own error texts do not show the input: it may contain a secret.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        protected_namespaces=(),
        defer_build=True,
        hide_input_in_errors=True,
    )

    def for_disk(self) -> str:
        """JSON of the fields that differ from their defaults. A release that does not know a field, yet or any more, reads
        every value that does not use it; and a default may not change without a migration."""
        return self.model_dump_json(exclude_defaults=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other fields. What the original has computed from its own (`cached_property`) is not in it."""
        copied = super().model_copy(update=update, deep=deep)
        content = copied.__dict__
        if len(content) > len(type(self).model_fields):
            for name in content.keys() - type(self).model_fields.keys():
                del content[name]
        return copied

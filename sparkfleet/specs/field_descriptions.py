"""Descriptions of fields: the docstrings under them, read from the source if somebody needs them.

Pydantic's `use_attribute_docstrings` reads the source of every model at its import, 25 ms of each command.
"""

from __future__ import annotations

import ast
import inspect
import textwrap

from pydantic import BaseModel


def field_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Field → the docstring under it, of the model and its bases; a field without one is left out."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base is not BaseModel and issubclass(base, BaseModel):
            found.update(_own(base))
    return found


def _own(model: type[BaseModel]) -> dict[str, str]:
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(defined, ast.ClassDef), f"{model} is no class"
    found = {}
    for field, under in zip(defined.body, defined.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(under, ast.Expr)
            and isinstance(under.value, ast.Constant)
            and isinstance(under.value.value, str)
        ):
            found[field.target.id] = inspect.cleandoc(under.value.value)
    return found

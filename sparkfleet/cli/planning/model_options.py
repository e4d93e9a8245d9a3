"""Fields of a deployment as options of a command line: for models that are given by their names, instead of a file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import ValidationError

from sparkfleet.errors import SpecError
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.fields import quote, thousands
from sparkfleet.specs.load import deployment_of, load_deployments


class ObjectiveName(StrEnum):
    """`objective` of a deployment."""

    INTERACTIVE = "interactive"
    THROUGHPUT = "throughput"
    CONTEXT = "context"


class ContentName(StrEnum):
    """`content` of a deployment."""

    MIXED = "mixed"
    PROSE = "prose"
    CODE = "code"
    EDITS = "edits"
    AGENT = "agent"
    JSON = "json"
    MATH = "math"


def tokens(text: str) -> int:
    """A number of tokens on a command line.

    Raises:
        typer.BadParameter: it is none; with the number if it is written as "128K".
    """
    if re.fullmatch(r"[1-9][0-9]{0,17}", text, re.ASCII):
        return int(text)
    meant = thousands(text)
    hint = f" Did you mean {meant}?" if meant else ""
    raise typer.BadParameter(f"found {quote(text)}. Expected a whole number of tokens.{hint}")


ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        parser=tokens,
        metavar="TOKENS",
        help="Tokens of the longest request.",
        show_default=False,
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option("--concurrency", min=1, metavar="N", help="Requests at once.", show_default=False),
]
ObjectiveOption = Annotated[
    ObjectiveName | None,
    typer.Option("--objective", help="The aim, as in a deployment.", show_default="interactive"),
]
ContentOption = Annotated[
    ContentName | None,
    typer.Option("--content", help="Kind of text that is mostly written.", show_default="mixed"),
]


class ModelOptions(NamedTuple):
    """Fields of deployments that a command line gives; None: left open."""

    context: int | None = None
    concurrency: int | None = None
    objective: ObjectiveName | None = None
    content: ContentName | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that are given, as in a deployment's file."""
        return {
            name: value.value if isinstance(value, StrEnum) else value
            for name, value in self._asdict().items()
            if value is not None
        }

    @property
    def words(self) -> str:
        """The options of a command line with a blank in front of each; "" if none is given."""
        return "".join(f" --{name} {shlex.quote(str(value))}" for name, value in self.fields.items())


NO_OPTIONS = ModelOptions()


def deployments_with(files: Sequence[Path], options: ModelOptions) -> tuple[Deployment, ...]:
    """The deployments of files and models, those of models with the options.

    Raises:
        SpecError: a file has a problem; an option is given for a file, which has fields; or its value is none of its field.
    """
    specs = load_deployments(files)
    if not options.fields:
        return specs
    for file in files:
        if deployment_of(file) is None:
            raise _for_models(file, options.fields)
    return tuple(_with_fields(one, options.fields) for one in specs)


def _for_models(file: Path, fields: Mapping[str, Any]) -> SpecError:
    name = "standard input" if file == Path("-") else str(file)
    lines = ", ".join(f"`{line}`" for line in field_lines(fields))
    return SpecError(
        f"{', '.join(f'--{field}' for field in fields)}: for models that are given by their names. {name} is no model.",
        means="A deployment's file has these fields itself.",
        do=f"Write {lines} into it.",
    )


def field_lines(fields: Mapping[str, Any]) -> Iterator[str]:
    """`context: 131072`: the lines of a deployment's file."""
    return (f"{name}: {value}" for name, value in fields.items())


def _with_fields(spec: Deployment, fields: Mapping[str, Any]) -> Deployment:
    try:
        return Deployment(name=spec.name, model=spec.model, **fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SpecError(f"--{first['loc'][0]} {first['input']}: {first['msg']}.") from None

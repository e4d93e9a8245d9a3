"""`sparkfleet help`: the help of the command line, or of one verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.errors import SpecError
from sparkfleet.specs.fields import quote


def show_help(
    ctx: typer.Context,
    verbs: Annotated[
        list[str] | None,
        typer.Argument(
            help="A verb, or one of a group (`fabric plan`); left out: all of them.",
            metavar="VERB",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Show the verbs, or the options of one."""
    whole = ctx.parent.command if ctx.parent is not None else None
    if ctx.parent is None or not isinstance(whole, typer.core.TyperGroup):
        raise SpecError("There is no help outside of the command line.")
    if not verbs:
        typer.echo(whole.get_help(ctx.parent))
        return Exit.DONE
    _show(whole, ctx.parent, verbs)
    return Exit.DONE


def _show(group: typer.core.TyperGroup, context: Any, verbs: Sequence[str]) -> None:
    """Print the help of a verb of a group, or of one below it. Raises SpecError if there is none."""
    command = group.get_command(context, verbs[0])
    if command is None:
        path = " ".join(("sparkfleet", "help", *_path(context)))
        raise SpecError(f"There is no verb {quote(verbs[0])}.", do=f"`{path}` lists them.")
    with typer.Context(command, info_name=verbs[0], parent=context) as inner:
        if not verbs[1:]:
            typer.echo(command.get_help(inner))
        elif isinstance(command, typer.core.TyperGroup):
            _show(command, inner, verbs[1:])
        else:
            name = " ".join(_path(inner))
            raise SpecError(
                f"{quote(name)} has no verb {quote(verbs[1])}.", do=f"`sparkfleet help {name}` prints it."
            )


def _path(context: Any) -> list[str]:
    """The verbs of a context, without the program."""
    if context.parent is None:
        return []
    return [*_path(context.parent), context.info_name or ""]

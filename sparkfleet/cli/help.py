"""`sparkfleet help`: the help of the command line, or of one verb."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.errors import SpecError
from sparkfleet.specs.fields import quote


def show_help(
    ctx: typer.Context,
    verb: Annotated[
        str | None,
        typer.Argument(help="A verb; left out: all of them.", metavar="[VERB]", show_default=False),
    ] = None,
) -> int:
    """Show the verbs, or the options of one."""
    whole = ctx.parent.command if ctx.parent is not None else None
    if ctx.parent is None or not isinstance(whole, typer.core.TyperGroup):
        raise SpecError("There is no help outside of the command line.")
    if verb is None:
        typer.echo(whole.get_help(ctx.parent))
        return Exit.DONE
    command = whole.get_command(ctx.parent, verb)
    if command is None:
        raise SpecError(f"There is no verb {quote(verb)}.", do="`sparkfleet help` lists them.")
    with typer.Context(command, info_name=verb, parent=ctx.parent) as inner:
        typer.echo(command.get_help(inner))
    return Exit.DONE

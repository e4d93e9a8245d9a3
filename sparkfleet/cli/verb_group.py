"""The command group of all verbs: loads the one that is used, and lists the others by their names and help."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sparkfleet.cli.loading import loading
from sparkfleet.cli.verbs import ALIASES, COMPLETING, HABITS, VERBS
from sparkfleet.errors import SpecError


class LazyGroup(TyperGroup):
    """A group of all `VERBS`. Lists of commands (help, completion, suggestions) use their names and help only."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, help=verb.help, short_help=verb.brief, rich_help_panel=verb.panel)
            for name, verb in VERBS.items()
        }
        self._is_listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, loaded; without its parameters while commands are listed. None if there is none."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in VERBS or self._is_listing:
            return self.commands.get(cmd_name)
        if os.environ.get(COMPLETING, "").startswith("complete_"):
            from sparkfleet.cli.completion import stub

            return stub(cmd_name) or load_command(cmd_name)
        return load_command(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb of a command line, loaded, with the words behind it. A terminal shows meanwhile that it loads."""
        name = ALIASES.get(args[0], args[0])
        if name in HABITS and not ctx.resilient_parsing:
            meant = ", ".join(f"'{one}'" for one in HABITS[name])
            briefs = [f"`sparkfleet {one}`: {VERBS[one].brief}" for one in HABITS[name] if one in VERBS]
            raise SpecError(f"No such command '{name}'. Did you mean {meant}?", do="\n".join(briefs))
        if name not in VERBS or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        with loading.during(name):
            return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help, with a line for each verb."""
        with self._listing():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Completions of a verb's name."""
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._is_listing = True
        try:
            yield
        finally:
            self._is_listing = False


def load_command(name: str) -> Any:
    """The command of a verb, or its group, with its parameters. Imports its module."""
    from sparkfleet.cli.examples import add_examples  # of one verb: lists of verbs have none

    target = VERBS[name].load()
    holder = typer.Typer(add_completion=False, callback=lambda: None)
    if isinstance(target, typer.Typer):
        holder.add_typer(target, name=name)
    else:
        holder.command(name)(target)
    command = typer.main.get_group(holder).commands[name]
    add_examples(command, name)
    return command

"""`sparkfleet ask`: sends one question to the endpoint, streams the answer, and measures its speed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sparkfleet.cli.describe import NameArgument
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, open_session, run
from sparkfleet.cli.output import errors
from sparkfleet.errors import ControlError
from sparkfleet.fleet.endpoint import AnswerSpeed
from sparkfleet.fleet.endpoint import ask as ask_endpoint
from sparkfleet.fleet.session import Session

KeyOption = Annotated[
    str,
    typer.Option("--key", envvar="SPARKFLEET_API_KEY", help="An API key of the endpoint.", show_envvar=True),
]


def ask(
    name: NameArgument,
    question: Annotated[str, typer.Argument(help="The question.", metavar="QUESTION", show_default=False)],
    key: KeyOption = "",
    inventory: InventoryOption = DEFAULT_INVENTORY,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 256,
) -> int:
    """Ask a model one question over the endpoint, as any client would."""
    if not key:
        raise ControlError(
            "No API key was given.",
            do="Set SPARKFLEET_API_KEY or pass --key; `sparkfleet keys create NAME` makes a key.",
        )
    return run(_ask(open_session(inventory), name, question, key, max_tokens))


async def _ask(session: Session, name: str, question: str, key: str, max_tokens: int) -> int:
    speed = await ask_endpoint(session, name, question, key, max_tokens=max_tokens, on_text=_write)
    sys.stdout.write("\n")
    errors.print(_line(speed), style="dim")
    return Exit.DONE


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _line(speed: AnswerSpeed) -> str:
    if speed.ttft_ms is None or speed.decode_tps is None:
        return f"{speed.tokens} tokens: too few to measure a rate"
    return (
        f"{speed.tokens} tokens · TTFT {speed.ttft_ms:.0f} ms · {speed.decode_tps:.1f} tok/s (measured here)"
    )

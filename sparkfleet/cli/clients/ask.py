"""`sparkfleet ask`: sends one question to the endpoint, streams the answer, and measures its speed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.escapes import RawOutput
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, NameArgument, open_session, run
from sparkfleet.cli.output import errors
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fleet.clients.endpoint import AnswerSpeed
from sparkfleet.fleet.clients.endpoint import ask as ask_endpoint
from sparkfleet.fleet.session import Session

KeyOption = Annotated[
    str,
    typer.Option(
        "--key",
        envvar="SPARKFLEET_API_KEY",
        help="An API key of the endpoint: @FILE, or - to read it from standard input. A key itself is refused: every"
        " user of this machine would see it while the command runs. Without one the command makes a key for itself and"
        " revokes it at its end.",
        show_envvar=True,
    ),
]
KEY_BYTES = 4096
"""More is no key."""


def ask(
    name: NameArgument,
    question: Annotated[str, typer.Argument(help="The question.", metavar="QUESTION", show_default=False)],
    key: KeyOption = "",
    inventory: InventoryOption = DEFAULT_INVENTORY,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 256,
) -> int:
    """Ask a model one question over the endpoint, as any client would."""
    if not question.strip():
        raise SpecError("The question is empty.", do=f'`sparkfleet ask {name} "What is a rail?"`')
    return run(_ask(open_session(inventory), name, question, key_of(key), max_tokens))


def key_of(given: str) -> str:
    """The key of `--key`: from a file, from standard input or from the environment; "" if none is given.

    Raises:
        ControlError: its file cannot be read, or contains no key; or the key itself is among the arguments.
    """
    if not given:
        return ""
    if given == "-":
        return _one_line(sys.stdin.readline(KEY_BYTES), "Standard input")
    if given.startswith("@"):
        try:
            return _one_line(Path(given[1:]).expanduser().read_text()[:KEY_BYTES], given[1:])
        except (OSError, UnicodeDecodeError) as error:
            raise ControlError(
                f"The API key in {given[1:]} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}.",
                do="Pass --key @FILE with the key's file; without --key the command makes a key for itself.",
            ) from None
    if given != os.environ.get("SPARKFLEET_API_KEY"):
        raise ControlError(
            "--key has an API key itself, which every user of this machine can see (`ps`).",
            means="Nothing was sent. If it is a key, it should be replaced: `sparkfleet keys rotate NAME`.",
            do="Pass --key @FILE, or --key - and the key on standard input, or set SPARKFLEET_API_KEY.",
        )
    return _one_line(given, "SPARKFLEET_API_KEY")


def _one_line(text: str, source: str) -> str:
    if key := text.strip():
        if not key.isprintable() or not key.isascii():
            raise ControlError(f"{source} contains no API key: a key is one line of printable ASCII.")
        return key
    raise ControlError(
        f"{source} contains no API key.",
        do="Without --key the command makes one for itself; `sparkfleet keys create NAME` makes one that stays.",
    )


async def _ask(session: Session, name: str, question: str, key: str, max_tokens: int) -> int:
    await print_answer(session, name, question, key, max_tokens)
    return Exit.DONE


async def print_answer(session: Session, name: str, question: str, key: str, max_tokens: int) -> None:
    """Print the answer as it arrives, and its speed on standard error."""
    output = RawOutput()

    def starts() -> None:
        errors.print(f"{name} is not loaded: it starts first.", style="dim")

    with ProgressLine(screen=errors) as progress:

        def write(text: str) -> None:
            progress.done()
            output.write(text.encode(errors="replace"))

        speed = await ask_endpoint(
            session,
            name,
            question,
            key,
            max_tokens=max_tokens,
            on_text=write,
            on_start=starts,
            on_event=progress,
        )
    write("\n")
    errors.print(_line(speed), style="dim")


def _line(speed: AnswerSpeed) -> str:
    if speed.ttft_ms is None:
        return f"{speed.tokens} tokens: too few to measure a rate"
    rate = "all arrived at once: no rate" if speed.decode_tps is None else f"{speed.decode_tps:.1f} tok/s"
    start = " with its start" if speed.with_start else ""
    line = f"{speed.tokens} tokens · TTFT {speed.ttft_ms:.0f} ms{start} · {rate} (measured here)"
    if speed.only_reasoning:
        line += "\nAll of them are reasoning, which is not shown: a higher `--max-tokens` leaves some for the answer."
    return line

"""The command line: options without a verb, exit codes, and errors. The verbs are in `verbs.py`, one module each."""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Annotated

import typer

from sparkfleet import __version__
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.interrupted import interrupted_words, is_endless
from sparkfleet.cli.loading import loading
from sparkfleet.cli.verb_group import LazyGroup
from sparkfleet.errors import SURROUNDINGS, SparkfleetError

EPILOG = (
    "Exit codes: 0 done or no change · 1 error · 2 plan, fabric plan: changes pending · 3 infeasible · "
    "4 head unreachable · 5 state unreadable · 6 another fleet answers · 130 interrupted (the fleet continues) · "
    "141 the reader of its output left"
)


FIRST_STEPS = (
    "First steps: `sparkfleet init HOST…`, `doctor`, `plan ORG/MODEL`, `apply ORG/MODEL`, `status`. "
    "Without a Spark: `plan ORG/MODEL --sparks 2`, or `demo`, which serves a small model on this machine."
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sparkfleet {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="sparkfleet",
    cls=LazyGroup,
    help="Serve open models well on NVIDIA DGX Sparks.",
    epilog=f"{EPILOG}\n\n{FIRST_STEPS}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options that need no verb."""


GARBAGE = 200_000
"""Objects that are made between two collections of garbage. Python's 700 let it look 150 times through the modules that a
verb imports, a fifth of the time to its first output; most verbs end before the first collection."""


def main() -> None:
    """Entry point of `sparkfleet`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # its parent process closed it (`>&-`)
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # for this process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals without "·" and file names that are no text
    gc.set_threshold(GARBAGE)
    # Pydantic reads the metadata of every installed package for plugins, which sparkfleet has none of: 13 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.exit(int(_code()))


def _entered() -> int:
    try:
        code = app(standalone_mode=False) or Exit.DONE
        sys.stdout.flush()  # here, where an error is in words: Python's own flush at its end makes 120 of it
        return code
    except SystemExit as ended:  # rich and typer make 1 of a reader that has left
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise
    finally:
        loading.erase()


def _code() -> int:
    try:
        code = _entered()
        if code == Exit.INTERRUPTED:  # typer makes a result of Ctrl-C
            raise KeyboardInterrupt
        return code
    except SparkfleetError as error:
        _print_error(error)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort) as error:
        if words := str(error) or interrupted_words(sys.argv[1:]):
            typer.echo(words, err=True)
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `sparkfleet logs NAME | head`; of other verbs the outcome is not known
        sys.stderr.close()
        _drop_output()
        return Exit.DONE if is_endless(sys.argv[1:]) else Exit.READER_LEFT
    except OSError as error:
        if error.errno not in SURROUNDINGS:
            raise
        what = error.filename or "standard output or another file"
        do = "Free disk space there, or give this user the permission."
        _print_error(SparkfleetError(f"{what}: {error.strerror}.", do=do))
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return Exit.ERROR
    except Exception as error:
        # A wrong command line. Typer may have its own copy of click, so the class is recognised by its methods.
        if not (hasattr(error, "show") and hasattr(error, "format_message")):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without its verb: its help
            error.show()
            _print_document(SparkfleetError("A verb is missing.", do=_usage_of(error)))
        else:
            _print_error(_command_line_error(error, error.format_message()))
        return Exit.ERROR


def _drop_output() -> None:
    """Discard what is still buffered: it is no error at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _command_line_error(error: Exception, message: str) -> SparkfleetError:
    """The error of a wrong command line, with an example of its verb."""
    from sparkfleet.cli.examples import EXAMPLES

    path = _path_of(error)
    what = f"{message.replace('Value error, ', '').rstrip('.?')}{'?' if message.endswith('?') else '.'}"
    example = f"For example: `{EXAMPLES[path]}`. " if path in EXAMPLES else ""
    return SparkfleetError(
        f"{path}: {what[:1].lower()}{what[1:]}" if path else what, do=f"{example}{_usage_of(error)}"
    )


def _path_of(error: Exception) -> str:
    """The words of the verb that was typed wrongly, without the program."""
    return str(getattr(getattr(error, "ctx", None), "command_path", "")).rpartition("sparkfleet")[2].strip()


def _usage_of(error: Exception) -> str:
    """The command that prints the verbs, or the arguments and options, of what was typed wrongly."""
    path = _path_of(error)
    is_group = hasattr(getattr(getattr(error, "ctx", None), "command", None), "commands")
    prints = "lists the verbs" if is_group else "prints the arguments and options"
    return f"`sparkfleet{f' {path}' if path else ''} --help` {prints}."


def _print_error(error: SparkfleetError) -> None:
    from sparkfleet.cli.output import print_error  # a slow import, needed for errors only

    print_error(error)
    _print_document(error)


def _print_document(error: SparkfleetError) -> None:
    """Prints an error as a document with `--json`: a program that reads no stderr gets the reason and the remedy."""
    if "--json" not in sys.argv:
        return
    from sparkfleet.cli.output import OUTPUT_VERSION, as_parts, print_json

    try:
        print_json({"version": OUTPUT_VERSION, "error": as_parts(error), "exit_code": int(error.exit_code)})
        sys.stdout.flush()
    except OSError:  # it may be standard output that cannot be written
        _drop_output()

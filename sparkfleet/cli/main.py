"""The command line: one file per verb, gathered here."""

from __future__ import annotations

import errno
import io
import sys
from typing import Annotated

import typer

from sparkfleet.cli import (
    accuracy,
    apply,
    ask,
    delete,
    describe,
    doctor,
    down,
    explain,
    fabric,
    init,
    inspect,
    keys,
    logs,
    models,
    plan,
    status,
    up,
    version,
)
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.output import errors, print_error
from sparkfleet.errors import SparkfleetError

EPILOG = (
    "Exit codes: 0 done or no change · 1 error · 2 plan, fabric plan: changes pending · 3 infeasible · "
    "130 interrupted (the work goes on)"
)
VERBS = (
    init.init,
    plan.plan,
    inspect.inspect,
    doctor.doctor,
    explain.explain,
    apply.apply,
    status.status,
    describe.describe,
    logs.logs,
    ask.ask,
    delete.delete,
    up.up,
    down.down,
    accuracy.accuracy,
    version.version,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        version.version()
        raise typer.Exit


app = typer.Typer(
    name="sparkfleet",
    help="Serve open models well on NVIDIA DGX Sparks.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Options that need no verb."""


for verb in VERBS:
    app.command()(verb)
app.add_typer(keys.app, name="keys")
app.add_typer(fabric.app, name="fabric")
app.add_typer(models.app, name="models")


SURROUNDINGS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})
"""Why a file cannot be used that is no fault of sparkfleet's."""


def main() -> None:
    """Entry point of `sparkfleet`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # one that is closed is None
            stream.reconfigure(errors="replace")  # a terminal that has no "·", a file name that is no text
    sys.exit(int(_code()))


def _code() -> int:
    try:
        return app(standalone_mode=False) or Exit.DONE
    except SparkfleetError as error:
        print_error(error)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        errors.print("Interrupted. What was asked for before goes on.")
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `sparkfleet logs NAME | head`
        sys.stderr.close()
        return Exit.DONE
    except OSError as error:
        if error.errno not in SURROUNDINGS:
            raise
        what = error.filename or "standard output or another file"
        print_error(
            SparkfleetError(f"{what}: {error.strerror}.", do="Make room there, or permit it to this user.")
        )
        return Exit.ERROR
    except Exception as error:
        # A wrong command line. Typer may bring a copy of click of its own, so its classes are known by what they do.
        if not hasattr(error, "show"):
            raise
        error.show()
        return Exit.ERROR


if __name__ == "__main__":
    main()

"""The command line: one file per verb, gathered here."""

from __future__ import annotations

import sys

import click
import typer

from sparkfleet.cli import apply, ask, delete, describe, down, keys, logs, plan, status, up, version
from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import errors, print_error
from sparkfleet.errors import SparkfleetError

EPILOG = (
    "Exit codes: 0 done or no change · 1 error · 2 plan: changes pending · 3 infeasible · "
    "130 interrupted (the work goes on)"
)

app = typer.Typer(
    name="sparkfleet",
    help="Serve open models well on NVIDIA DGX Sparks.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for verb in (
    plan.plan,
    apply.apply,
    status.status,
    describe.describe,
    logs.logs,
    delete.delete,
    up.up,
    down.down,
):
    app.command()(verb)
app.command()(version.version)
app.add_typer(keys.app, name="keys")


def main() -> None:
    """Entry point of `sparkfleet`."""
    try:
        code = app(standalone_mode=False) or Exit.DONE
    except SparkfleetError as error:
        print_error(error)
        code = error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        errors.print("interrupted; what was asked for goes on")
        code = Exit.INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        code = Exit.DONE
    sys.exit(int(code))


if __name__ == "__main__":
    main()

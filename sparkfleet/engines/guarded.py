"""The guard (`guard.py`) as a file of a rank, for engines that run it in their own process. Pure."""

from __future__ import annotations

from importlib.resources import files

from sparkfleet.engines.base import FILES_IN_CONTAINER, LaunchFile

METRICS_ENV = "SPARKFLEET_METRICS_TOKEN"
"""Variable with the token that opens an engine's metrics page and nothing else."""

MODULE = "sparkfleet_guard"
GUARD = LaunchFile(
    name=f"{MODULE}.py",
    text=files("sparkfleet.engines").joinpath("guard.py").read_text(encoding="utf-8"),
    about="sparkfleet/engines/guard.py: answers 401 to every request without the engine's token",
)

START = LaunchFile(
    name="start.sh",
    text=f"""\
#!/bin/sh
# start.sh COMMAND...: runs it with this directory on Python's path, before what the image itself has there.
PYTHONPATH={FILES_IN_CONTAINER}${{PYTHONPATH:+:$PYTHONPATH}}
export PYTHONPATH
exec "$@"
""",
    executable=True,
    about="puts this directory on PYTHONPATH, before the image's own",
)
"""For containers: a PYTHONPATH among their arguments would replace the image's own."""
START_ARGV = ("sh", f"{FILES_IN_CONTAINER}/{START.name}")

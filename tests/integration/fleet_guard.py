"""Takes a fleet of this machine down if the process of the tests that made it ends without doing so.

A worker of pytest that is interrupted ends at once, without its fixtures. Labs have a reaper of their own.
"""

import os
import shutil
import subprocess
import sys

DONE = "done"


class FleetGuard:
    """A process that waits for the end of this one.

    Args:
        fleet: a `live_fleet.Fleet`.
    """

    def __init__(self, fleet):
        home, run = str(fleet.directory / "state"), str(fleet.paths.run)
        self._process = subprocess.Popen(
            [sys.executable, __file__, run],
            cwd=fleet.directory,
            env={**os.environ, "SPARKFLEET_HOME": home},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # the interrupt of a terminal goes to the session of the tests
        )

    def dismiss(self):
        """Ends it: the fleet is down."""
        self._process.communicate(DONE)


def main(run):
    """Waits for a word or the end of standard input; takes the fleet of this directory down after the latter."""
    if sys.stdin.read() != DONE:
        command = os.path.join(os.path.dirname(sys.executable), "sparkfleet")
        subprocess.run([command, "down"], stdin=subprocess.DEVNULL, check=False)
        shutil.rmtree(run, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])

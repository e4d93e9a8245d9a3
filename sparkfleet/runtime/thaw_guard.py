"""Lets processes continue that were stopped (SIGSTOP) by a command that was killed before it could do so. Stdlib only.

As a program, `python -m sparkfleet.runtime.thaw_guard NAME VALUE SECONDS`, it waits, then continues every stopped process
with this variable in its environment.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from sparkfleet.runtime import processes

LABEL = "SPARKFLEET_THAW_GUARD"
"""Variable of a guard, with the value of the processes that it guards."""
WAIT_S = 60.0
"""Seconds until stopped processes continue: their end comes one round trip after their stop, within seconds."""


async def start(name: str, value: str, wait_s: float = WAIT_S) -> None:
    """Starts a guard of the processes with this variable, in place of a former one. It outlives this process."""
    await end(value)
    _spawn(name, value, wait_s)


async def end(value: str) -> None:
    """Ends the guards of the processes with this value: they are continued or ended."""
    await processes.kill_all(lambda: processes.labelled({LABEL: value}), grace_s=0.0)


def _spawn(name: str, value: str, wait_s: float) -> None:
    argv = (sys.executable, "-P", "-m", "sparkfleet.runtime.thaw_guard", name, value, str(wait_s))
    nothing = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_RDWR, 0) for n in range(3)]
    environment = {key: text for key, text in os.environ.items() if key != name} | {LABEL: value}
    # Not a Popen, which warns of a process that its parent leaves to itself.
    os.posix_spawn(sys.executable, argv, environment, file_actions=nothing, setsid=True)


def main() -> None:
    """Waits and continues what is stopped, see above."""
    name, value, wait_s = sys.argv[1:]
    time.sleep(float(wait_s))
    found = [one for one in processes.labelled({name: value}) if processes.is_stopped(one.pid)]
    asyncio.run(processes.thaw(lambda: found))


if __name__ == "__main__":
    main()

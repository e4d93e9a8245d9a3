"""date, timedatectl, prlimit and lsb_release, with the clock and the limits of the node's settings."""

from __future__ import annotations

import sys
import time
from itertools import pairwise

from sparkfleet.lab.inside.commands import pass_on
from sparkfleet.lab.inside.node_settings import NodeSettings


def date(argv: list[str], settings: NodeSettings) -> int:
    """The system's date, ahead by the node's skew. A given date (-d, -r, -s) is not changed."""
    skew = settings.number("clock_skew")
    asked = any(
        word.startswith(("-d", "--date", "-r", "--reference", "-s", "--set", "-f")) for word in argv[1:]
    )
    shifted = [] if asked or not skew else [f"--date=@{time.time() + skew:.9f}"]
    return pass_on("date", [*shifted, *argv[1:]])


def timedatectl(argv: list[str], settings: NodeSettings) -> int:
    """`timedatectl [status]` and `timedatectl show [-p PROPERTY [--value]]`."""
    synchronised = settings.text("ntp")
    now = time.gmtime(time.time() + settings.number("clock_skew"))
    values = {"Timezone": "Etc/UTC", "LocalRTC": "no", "CanNTP": "yes", "NTP": synchronised,
              "NTPSynchronized": synchronised, "TimeUSec": time.strftime("%a %Y-%m-%d %H:%M:%S UTC", now)}  # fmt: skip
    if "show" in argv:
        wanted = [value for word, value in pairwise(argv) if word in ("-p", "--property")]
        wanted += [word.partition("=")[2] for word in argv if word.startswith("--property=")]
        for name in wanted or values:
            print(values[name] if "--value" in argv else f"{name}={values[name]}")
        return 0
    print(f"               Local time: {values['TimeUSec']}\n           Universal time: {values['TimeUSec']}")
    print(f"                Time zone: Etc/UTC (UTC, +0000)\nSystem clock synchronized: {synchronised}")
    print(
        f"              NTP service: {'active' if synchronised == 'yes' else 'inactive'}\n          RTC in local TZ: no"
    )
    return 0


def prlimit(argv: list[str], settings: NodeSettings) -> int:
    """The system's prlimit, except for locked memory: a host without CAP_SYS_RESOURCE cannot set a Spark's limit."""
    if not any(word in ("-l", "--memlock") for word in argv[1:]) or any(
        word.startswith("--pid") for word in argv[1:]
    ):
        return pass_on("prlimit", argv[1:])
    knob = settings.text("memlock")
    limit = knob if knob == "unlimited" else str(int(knob) * 1024)
    if "--output" in argv or "-o" in argv:
        columns = argv[argv.index("--output" if "--output" in argv else "-o") + 1].split(",")
    else:
        columns = ["RESOURCE", "DESCRIPTION", "SOFT", "HARD", "UNITS"]
    row = {"RESOURCE": "MEMLOCK", "DESCRIPTION": "max locked-in-memory address space", "SOFT": limit, "HARD": limit,
           "UNITS": "bytes"}  # fmt: skip
    if not any(word in argv for word in ("--noheadings", "-n")):
        print(" ".join(columns))
    print(" ".join(row[column] for column in columns))
    return 0


def lsb_release(argv: list[str], settings: NodeSettings) -> int:
    """`lsb_release -a`; other options give the same output."""
    print("No LSB modules are available.", file=sys.stderr)
    print("Distributor ID:\tUbuntu\nDescription:\tUbuntu 24.04.4 LTS\nRelease:\t24.04\nCodename:\tnoble")
    return 0

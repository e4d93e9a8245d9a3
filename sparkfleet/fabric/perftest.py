"""Arguments and output of `ib_write_bw` and `ib_write_lat`. Pure."""

from __future__ import annotations

import re

from sparkfleet.hostfacts.fact import unexpected_output

_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)"


def bandwidth_argv(device: str, port: int, seconds: float, gid: int | None, peer: str) -> tuple[str, ...]:
    """The command of one end of a bandwidth test; with `peer`, the sending end. Messages are 64 KiB, the default."""
    words = ("ib_write_bw", "-d", device, "-i", "1", "-p", str(port), "-F", "--report_gbits")
    return (*words, "-q", "4", "-D", str(max(1, round(seconds))), *_rest(gid, peer))


def latency_argv(device: str, port: int, rounds: int, gid: int | None, peer: str = "") -> tuple[str, ...]:
    """The command of one end of a latency test; with `peer`, the measuring end."""
    words = ("ib_write_lat", "-d", device, "-i", "1", "-p", str(port), "-F", "-n", str(rounds))
    return (*words, *_rest(gid, peer))


def _rest(gid: int | None, peer: str) -> tuple[str, ...]:
    return (*(("-x", str(gid)) if gid is not None else ()), *((peer,) if peer else ()))


def parse_bandwidth(output: str) -> float:
    """GB/s (1e9 bytes) on average, of the last row. Raises FactError if there is none."""
    header = re.search(r"^\s*#bytes\s.*BW average\[(Gb|MB)/sec\]", output, re.MULTILINE)
    rows = re.findall(
        rf"^\s*[0-9]{{1,12}}\s+[0-9]{{1,12}}\s+{_NUMBER}\s+{_NUMBER}(?:\s+{_NUMBER})?\s*$",
        output,
        re.MULTILINE,
    )
    if header is None or not rows:
        raise unexpected_output("the bandwidth", output)
    # perftest's MB has 2^20 bytes.
    return float(rows[-1][1]) * ((1 << 20) / 1e9 if header[1] == "MB" else 1 / 8)


def parse_latency(output: str) -> float:
    """The typical latency of a small message, microseconds. Raises FactError if there is none."""
    header = re.search(r"^\s*#bytes\s.*t_typical\[usec\]", output, re.MULTILINE)
    rows = re.findall(
        rf"^\s*[0-9]{{1,12}}\s+[0-9]{{1,12}}\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\b", output, re.MULTILINE
    )
    if header is None or not rows:
        raise unexpected_output("the latency", output)
    return float(rows[-1][2])

"""Numbers as users read them. Sizes in bytes have binary units if they are memory, decimal ones if disks or weights."""

from datetime import datetime

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
GB = 10**9


def short_number(value: float) -> str:
    """A number with two digits, or all digits before its point."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def plural(number: int, noun: str) -> str:
    """A number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {noun}" + ("s" if number != 1 else "")


def three_digits(value: float) -> str:
    """A rate with three digits, or all digits before its point: `9.27`, `48.5`, `1254`; never `1.25e+03`."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def rough_duration(seconds: float) -> str:
    """A time of which only the size is known: `40 s`, `9 min`."""
    return f"{max(10, round(seconds, -1)):.0f} s" if seconds < 95 else f"{seconds / 60:.0f} min"


def duration_words(seconds: float) -> str:
    """`45 s`, `2 min 10 s`, `1 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")


def moment_words(at: float) -> str:
    """A moment (Unix seconds) in local time: `2026-12-01 03:04:05`."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def gib(size: float, *, exact: bool = False) -> str:
    """`45 GiB`, `2.5 GiB`: memory. `exact`: with a decimal, if two close sizes are compared."""
    return f"{_digits(size / GIB, exact)} GiB"


def gib_of(part: float, whole: float) -> str:
    """`45 of 122 GiB`."""
    return f"{short_number(part / GIB)} of {gib(whole)}"


def gb(size: float, *, exact: bool = False) -> str:
    """`45 GB`, `2.5 MB`: disks, files, downloads. `exact`: with a decimal, if two close sizes are compared."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{_digits(size / factor, exact)} {unit}"
    return f"{size:.0f} B"


def _digits(value: float, exact: bool) -> str:
    return f"{value:.1f}" if exact else short_number(value)

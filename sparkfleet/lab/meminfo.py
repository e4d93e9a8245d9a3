"""/proc/meminfo of a DGX Spark."""

from __future__ import annotations

_SPARK = {
    "MemTotal": 127600748, "MemFree": 99159460, "MemAvailable": 112503684, "Buffers": 213252, "Cached": 13694160,
    "SwapCached": 0, "Active": 6712244, "Inactive": 14694160, "Unevictable": 24640, "Mlocked": 24640,
    "SwapTotal": 16777212, "SwapFree": 16777212, "Dirty": 240, "Writeback": 0, "AnonPages": 1712244,
    "Mapped": 402112, "Shmem": 3028, "KReclaimable": 477572, "Slab": 998092, "SReclaimable": 477572,
    "SUnreclaim": 520360, "KernelStack": 14224, "PageTables": 31220,
}  # fmt: skip
"""An idle, headless Spark, kB (a capture of 2026-06-01 gives total, available and free)."""
_LEAKED = {"MemFree": 3139656, "MemAvailable": 40174336, "Buffers": 13252, "Cached": 37694160}
"""A Spark whose driver kept about 80 GiB that no line contains (a capture of 2026-09-13), kB."""


_LESS_KB = 127600748 - 62500000
"""A Spark of 64 GB has so much less, by its nominal size: no capture is published (knowledge/hardware.yaml)."""
_SPARK_64 = {name: _SPARK[name] - _LESS_KB for name in ("MemTotal", "MemFree", "MemAvailable")}
_KINDS: dict[str, dict[str, int]] = {"spark": {}, "leaked": _LEAKED, "spark-64": _SPARK_64}


def meminfo(kind: str, held_mib: int) -> str:
    """The file's text for a `spark`, one of 64 GB or a `leaked` one, without the memory of a process on the GPU."""
    values = _SPARK | _KINDS[kind]
    held = {name: max(0, values[name] - held_mib * 1024) for name in ("MemFree", "MemAvailable")}
    rows = [f"{name + ':':<16}{amount:>8} kB" for name, amount in (values | held).items()]
    return (
        "\n".join(
            [*rows, "HugePages_Total:       0", "HugePages_Free:        0", "Hugepagesize:       2048 kB"]
        )
        + "\n"
    )

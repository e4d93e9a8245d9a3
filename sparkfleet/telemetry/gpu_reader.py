"""Reads the GPU of this node by `nvidia-smi`, and the reason for which it cannot be read."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.gpu import GpuState, ReadGpuState
from sparkfleet.telemetry.local_command import COMMAND_S, run_here

NVIDIA = "0x10de"
DISPLAY = "0x03"
"""Beginning of the PCI class of GPUs: VGA and 3D controllers."""
UNANSWERED = 2
"""Readings in a row that have to take too long before that is a trouble: a loaded node answers one late."""


class GpuReading(NamedTuple):
    """GPUs of a node, or the reason for which they are not known."""

    gpus: tuple[GpuState, ...] | None
    """None: not read, or there is no `nvidia-smi`."""
    trouble: str = ""
    """Fact and meaning; "" if they were read, and on a machine without a GPU."""


class GpuReader:
    """Reads the GPUs again and again. `root`: "/", or another tree in tests.

    Only a GPU that was read before, or that the PCI bus has, is missed: a machine without one may have `nvidia-smi`.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._was_read = False
        self._late = 0

    def read(self) -> GpuReading:
        """Takes 50 ms, and up to `COMMAND_S` if the driver hangs."""
        try:
            gpus = ReadGpuState.answer(*run_here(ReadGpuState.argv))
        except OSError:
            return GpuReading(None)
        except subprocess.SubprocessError:
            self._late += 1
            return GpuReading(None, self._hangs() if self._late >= UNANSWERED else "")
        except FactError as error:
            self._late = 0
            return GpuReading(None, self._missed(f"{error.what} {error.means}".strip()))
        self._late = 0
        if not gpus:
            return GpuReading(gpus, self._missed("nvidia-smi finds no GPU: its driver could not start it."))
        self._was_read = True
        return GpuReading(gpus)

    def _hangs(self) -> str:
        return self._missed(f"nvidia-smi does not end within {COMMAND_S:.0f} s: the GPU's driver hangs.")

    def _missed(self, words: str) -> str:
        return words if self._was_read or self._has_gpu() else ""

    def _has_gpu(self) -> bool:
        devices = (self._root / "sys/bus/pci/devices").glob("*")
        return any(
            _text(one / "vendor") == NVIDIA and _text(one / "class").startswith(DISPLAY) for one in devices
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # the device has just gone
        return ""

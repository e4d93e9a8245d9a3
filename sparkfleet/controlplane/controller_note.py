"""The controller's own state in a file, for programs that its API does not reach: its port may be taken."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import Literal

from pydantic import ValidationError

from sparkfleet.controlplane.state.desired import Generation
from sparkfleet.errors import SparkfleetError
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.values import Value

log = logging.getLogger(__name__)

ControllerState = Literal["starting", "working", "held"]


class ControllerNote(Value):
    """State of the controller's process."""

    pid: int
    at: float
    """Moment of its last change, Unix seconds."""
    state: ControllerState = "starting"
    """`held`: its store cannot be used, and it changes nothing."""
    fault: str = ""
    """The kind of trouble with the store, a `StoreFault`; "" if there is none."""
    what: str = ""
    means: str = ""
    do: str = ""
    api: str = ""
    """Reason for which its API does not listen; "" if it does."""
    running: tuple[Generation, ...] = ()
    """Generations that exist while it is held."""


class NoteWriter:
    """Keeps the note of this process. A note that cannot be written is logged: it only adds words."""

    def __init__(self, paths: FleetPaths) -> None:
        self._paths = paths
        self.note = ControllerNote(pid=os.getpid(), at=time.time())
        self._write()

    def change(self, **fields: object) -> None:
        """Replaces some of its fields."""
        changed = self.note.model_copy(update=fields)
        if changed != self.note:
            self.note = changed.model_copy(update={"at": time.time()})
            self._write()

    def hold(self, error: SparkfleetError, fault: str, running: tuple[Generation, ...]) -> None:
        """Writes that the controller waits for its store."""
        self.change(
            state="held", fault=fault, what=error.what, means=error.means, do=error.do, running=running
        )

    def work(self) -> None:
        """Writes that it works."""
        self.change(state="working", fault="", what="", means="", do="", running=())

    def _write(self) -> None:
        try:
            write_atomically(self._paths.controller_note, self.note.for_disk().encode())
        except OSError as error:
            log.warning("%s could not be written: %s", self._paths.controller_note, error)


def read_note(paths: FleetPaths) -> ControllerNote | None:
    """The last note; None if there is none, or it cannot be read."""
    with contextlib.suppress(OSError, ValidationError):
        return ControllerNote.model_validate_json(paths.controller_note.read_bytes())
    return None

"""Note of an engine's last end on rank 0's node, for the group's next actor.

Ray's head, and with it the controller, may be away when an engine ends; and a node that loses its power reports nothing.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.hang_guard import leave_note, take_note


class EndNote:
    """The reason of the last end, or the boot in which the engine became ready.

    Args:
        path: a file that a reboot keeps. If it cannot be written, the next actor knows no reason.
        node: rank 0's name.
        boot: its boot id (`runtime/boot_id.py`).
    """

    def __init__(self, path: Path, node: str, boot: str) -> None:
        self._path = path
        self._node = node
        self._boot = boot

    def note_serving(self) -> None:
        """Notes that the engine serves in this boot."""
        with contextlib.suppress(OSError):
            write_atomically(self._path, json.dumps({"boot": self._boot}).encode())

    def leave(self, reason: str) -> None:
        """Notes the reason of its end."""
        leave_note(self._path, reason)

    def forget(self) -> None:
        """Removes the note after an intended stop."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def take(self) -> str:
        """The reason of the last end, once; "" if it is not known, or if the engine may still run."""
        if boot := self._served_in():
            if boot == self._boot:
                return ""
            self.forget()
            return f"{self._node} was switched off or restarted while its engine served; the engine is loaded again"
        return take_note(self._path)

    def _served_in(self) -> str:
        try:
            left = json.loads(self._path.read_bytes())
            return str(left.get("boot") or "")
        except (OSError, ValueError, AttributeError):
            return ""

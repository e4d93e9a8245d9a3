"""Outputs of a bundle's commands: printed in place of the lab's own, with their exit codes.

Each answer is one JSON file below `PLACE`, named by the hash of its command, word by word. It is text to print: no part of
it is executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

PLACE = "/run/lab/state/replay"
MISSING = "missing.json"
"""List of the programs that the captured node does not have."""
NOT_FOUND = 127
_FOREVER_S = 10.0**8


def file_of(argv: Sequence[str]) -> str:
    """Name of the file with the answer to a command."""
    joined = "\0".join(argv).encode(errors="surrogateescape")
    return f"{hashlib.sha256(joined).hexdigest()}.json"


def answer(argv: Sequence[str], place: str = PLACE) -> int | None:
    """Prints the captured output of a command. Returns its exit code; None if there is no capture of it."""
    found = _load(os.path.join(place, file_of(argv)))
    if found is None:
        return _absent(argv[0], place)
    sys.stdout.flush()
    for stream, text in ((sys.stdout, found["stdout"]), (sys.stderr, found["stderr"])):
        stream.buffer.write(text.encode(errors="replace"))
        stream.flush()
    if found["late"]:
        # It did not end on the captured node either; its caller's time limit ends it.
        time.sleep(_FOREVER_S)
    return int(found["exit_code"])


def _absent(program: str, place: str) -> int | None:
    if program not in (_load(os.path.join(place, MISSING)) or ()):
        return None
    print(f"{program}: command not found", file=sys.stderr)
    return NOT_FOUND


def _load(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None

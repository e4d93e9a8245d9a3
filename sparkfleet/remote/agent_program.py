"""Runs a program of sparkfleet on a node: the far half of `agent.py`. The node's python3 is started with its text.

Reads an order on standard input (JSON): `program`, the text of a module with a function `main(request, emit)`, and
`request`. Prints a JSON line for each event: the arguments of each call of `emit`, and last `{"event": "result",
"value": …}` with the return value of `main`, or `{"event": "error", "kind", "what", "means", "do"}` with its exception.

Standard library only; runs on Pythons down to 3.8, whatever the node's python3 is.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import types
from typing import Any


def emit(event: str, **words: Any) -> None:
    """Print one event at once. Raises BrokenPipeError if the reader is gone."""
    content = json.dumps({"event": event, **words}).encode() + b"\n"
    while content:
        content = content[os.write(1, content) :]


def main() -> int:
    """Run the program of the order and return its exit code."""
    order = json.load(sys.stdin)
    module = types.ModuleType("program")
    sys.modules["program"] = module
    exec(compile(order["program"], "program", "exec"), module.__dict__)  # noqa: S102 - sent by `agent.py`
    try:
        emit("result", value=module.main(order["request"], emit))
    except BrokenPipeError:
        return 1  # the caller is gone
    except Exception as error:
        traceback.print_exc()
        more = {name: str(getattr(error, name, "")) for name in ("means", "do")}
        emit("error", kind=type(error).__name__, what=str(error), **more)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

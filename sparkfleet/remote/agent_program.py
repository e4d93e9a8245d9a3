"""Runs a program of ours on a node: the far half of `agent.py`. Its text is what the node's python3 is started with.

Reads an order on standard input (JSON): `program`, the text of a module with a function `main(request, say)`, and
`request`. Prints a JSON line for each event: what `say` is called with, and last `{"event": "result", "value": …}` with
what `main` returns, or `{"event": "error", "kind", "what", "means", "do"}` with what it raises.

Standard library only; runs on Pythons down to 3.8, whatever the node's python3 is.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import types
from typing import Any


def say(event: str, **words: Any) -> None:
    """Print one event at once. Raises BrokenPipeError if nobody listens any more."""
    content = json.dumps({"event": event, **words}).encode() + b"\n"
    while content:
        content = content[os.write(1, content) :]


def main() -> int:
    """Run the program that is ordered, to its exit code."""
    order = json.load(sys.stdin)
    module = types.ModuleType("program")
    sys.modules["program"] = module
    exec(compile(order["program"], "program", "exec"), module.__dict__)  # noqa: S102 - what `agent.py` has sent
    try:
        say("result", value=module.main(order["request"], say))
    except BrokenPipeError:
        return 1  # who asked has gone
    except Exception as error:
        traceback.print_exc()
        more = {name: str(getattr(error, name, "")) for name in ("means", "do")}
        say("error", kind=type(error).__name__, what=str(error), **more)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A deployment on demand of the packaged fake engine, as a custom workload."""

import json
import sys


def on_demand(name, port, more="", start_s=1):
    """Its file. `more`: further lines; `start_s`: seconds of its start."""
    words = [sys.executable, "-m", "sparkfleet.engines.fake", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--model", name, "--itl-ms", "5", "--start-s", str(start_s)]
    return (
        f"name: {name}\nmodel: org/{name}\nengine: custom\ncommand: {json.dumps(words)}\nport: {port}\n"
        f"health: /health\non_demand: true\n{more}"
    )

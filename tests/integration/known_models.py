"""Facts about an architecture that vLLM reads before it starts: read once on this machine, for all nodes and images.

It imports the architecture's module in a process of its own for that, 10 s of every start, and keeps what it found in the
user's cache. In a lab every node has a home of its own, and every container begins without one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

_FIND_OUT = """
import sys
from vllm.model_executor.models import ModelRegistry
for name in sys.argv[1:]:
    ModelRegistry.models[name].inspect_model_cls()
"""


def directory():
    """Its directory; it need not exist."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("VLLM_CACHE_ROOT") or Path(caches, "vllm"), "modelinfos")


def find_out(checkpoint):
    """Have vLLM know a checkpoint's architectures, where it does not yet; the directory."""
    named = json.loads((checkpoint / "config.json").read_text())["architectures"]
    unknown = [name for name in named if not list(directory().glob(f"*-{name}.json"))]
    if unknown:
        subprocess.run([sys.executable, "-c", _FIND_OUT, *unknown], check=True, timeout=600)
    return directory()

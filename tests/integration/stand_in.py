"""An interpreter for a node's `engines`, whose vLLM is the packaged fake engine if a deployment asks for it."""

import shutil
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "stand_ins" / "python"


def stand_in(directory):
    """Lay it into a directory that the nodes see; its path."""
    python = directory / "python"
    shutil.copy(PROGRAM, python)
    (directory / "interpreter").write_text(sys.executable)
    (directory / "faults").mkdir()
    return python


def faked(text, start_s=0, says=""):
    """A deployment without `env`, by the fake engine. `start_s`: how long it loads, `says`: its first line, by name."""
    return f"{text}env: {{FAKE_ENGINE: '1', FAKE_START_S: '{start_s}', FAKE_SAYS: '{says}'}}\n"

"""The command line of our program on a node is composed in one place."""

import importlib.util
import re
from pathlib import Path

import sparkfleet
from sparkfleet.runtime.node_command import node_command

ROOT = Path(sparkfleet.__file__).parent


def test_it_names_a_module_that_exists():
    python, *flags, module, verb, directory = node_command("/env/bin/python", "keep", "/state")
    assert (python, flags, verb, directory) == ("/env/bin/python", ["-P", "-m"], "keep", "/state")
    assert importlib.util.find_spec(module) is not None


def test_no_other_module_composes_it():
    composed = re.compile(r"""["']-m["'],\s*(["']sparkfleet\.node_daemon\.node_cli|os\.fsdecode\(WATCHDOG)""")
    places = [path.relative_to(ROOT) for path in ROOT.rglob("*.py") if composed.search(path.read_text())]
    assert places == [Path("runtime/node_command.py")]

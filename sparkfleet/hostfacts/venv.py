"""Python of a node, and the packages of the environment that sparkfleet runs in."""

from __future__ import annotations

from sparkfleet.hostfacts.fact import Fact, json_of, text
from sparkfleet.values import Value

_PROBE = """
import glob, json, os, sys
from importlib.metadata import PackageNotFoundError, version
def of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return ''
def own():
    return {'python': '.'.join(map(str, sys.version_info[:3])), 'executable': sys.executable,
            'sparkfleet': of('sparkfleet'), 'ray': of('ray')}
def installed():
    done = glob.glob(os.path.expanduser('~/.local/share/sparkfleet/env/*/complete'))
    if not done:
        return None
    place = os.path.dirname(max(done, key=lambda path: os.path.getmtime(os.path.dirname(path))))
    def of(name):
        found = glob.glob(os.path.join(place, 'lib', 'python3*', 'site-packages', name + '-*.dist-info'))
        return os.path.basename(found[0])[len(name) + 1:-len('.dist-info')] if found else ''
    with open(os.path.join(place, 'pyvenv.cfg')) as f:
        words = dict(line.split(' = ', 1) for line in f.read().splitlines() if ' = ' in line)
    return {'python': words.get('version', ''), 'executable': os.path.join(place, 'bin', 'python'),
            'sparkfleet': of('sparkfleet'), 'ray': of('ray')}
print(json.dumps(sys.argv[1] == 'installed' and installed() or own()))
"""


class PythonEnvironment(Value):
    """One Python environment. Empty text: not installed there."""

    python: str
    """Its version, such as "3.12.3"."""
    executable: str = ""
    sparkfleet: str = ""
    ray: str = ""


class ReadPythonEnvironment(Fact[PythonEnvironment]):
    """Reads the versions in the newest environment that sparkfleet has installed on the node; without one, in `python3`'s.

    With `own` in place of `installed`: in the environment of the interpreter that runs it.
    """

    argv = ("python3", "-I", "-c", _PROBE, "installed")

    @classmethod
    def own(cls, python: str) -> tuple[str, ...]:
        """The command for the environment of `python`."""
        return (python, *cls.argv[1:4], "own")

    @staticmethod
    def parse(output: str) -> PythonEnvironment:
        """A JSON object of strings."""
        found = json_of(output, dict, "the versions of Python and Ray")
        return PythonEnvironment(
            **{
                name: text(found.get(name) or "", 100)
                for name in ("python", "executable", "sparkfleet", "ray")
            }
        )

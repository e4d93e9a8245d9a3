"""The store on a disk that is really full: a file system of 2 MiB, in a mount namespace of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import asyncio, atexit, os, shutil, sqlite3, sys
sys.path.insert(0, {support!r})
from pathlib import Path
from control_values import deployment, plan
from sparkfleet.controlplane.store_safety.copies import copies
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.store_safety.opening import open_store
from sparkfleet.controlplane.store_safety.safekeeping import Safekeeping
from sparkfleet.runtime.files.fleet_paths import FleetPaths

paths = FleetPaths(Path("/mnt") / f"home-{{os.getpid()}}")
paths.create()
atexit.register(shutil.rmtree, paths.run)  # it remembers the store, and the next run has another one
filler = Path("/mnt/filler")


def fill():
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


store = open_store(paths, "home")
store.deployments.put(deployment(), plan(), "me")
keeping = Safekeeping(paths, store, lambda words: warned.append(words))
warned = []
fill()
try:
    for concurrency in range(1, 1000):
        store.deployments.put(deployment(), plan(concurrency=concurrency), "me")
    raise SystemExit("the disk is not full")
except sqlite3.Error as error:
    assert "full" in str(error), error
kept = store.deployments.desired()["tiny"]
asyncio.run(keeping.look())
assert "could not be copied" in warned[-1], warned
assert copies(paths) == ()
store.close()

try:
    open_store(paths, "home").deployments.put(deployment(), plan(concurrency=4242), "me")
    raise SystemExit("the disk is not full")
except StoreError as error:
    assert "its disk is full" in error.what, error.what
    assert "Free space" in error.do
except sqlite3.Error as error:
    assert "full" in str(error), error

filler.unlink()
store = open_store(paths, "home")
assert store.deployments.desired()["tiny"] == kept, "what was stored is there"
assert store.deployments.put(deployment(), plan(concurrency=4242), "me")[0].generation > kept.generation
store.close()
print("done")
"""


def test_nothing_is_lost_and_the_reason_is_named(tmp_path):
    support = Path(__file__).parents[1] / "support"
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.format(support=str(support)))
    mounted = 'mount -t tmpfs -o size=2m none /mnt && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", mounted, "sh", sys.executable, str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "done\n", f"{done.stdout}{done.stderr}"

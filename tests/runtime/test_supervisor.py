"""Parts of a supervisor; `test_process_*.py` test the whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import sparkfleet
from sparkfleet.runtime.base import RankSpec
from sparkfleet.runtime.process_runtime import ProcessRuntime
from sparkfleet.runtime.processes import process
from sparkfleet.runtime.supervisor import Order


def test_it_imports_the_standard_library_only():
    script = "import sparkfleet.runtime.supervisor, sys; print(*{m.partition('.')[0] for m in sys.modules})"
    root = str(Path(sparkfleet.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-c", script],
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) <= {*sys.stdlib_module_names, "__main__", "sparkfleet"}


async def test_it_is_small(runtime, herald, make_spec):
    started = await runtime.start(make_spec(herald.script("signal.pause()")))
    supervisor = process(started.pid).parent
    resident = int(Path(f"/proc/{supervisor}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert resident < 25 << 20


async def test_the_start_of_a_rank_is_on_the_clock_that_nobody_sets(runtime, herald, make_spec):
    """After a clock was set back an hour a later group's rank looked earlier, and a shortage of memory ended the other."""
    before = time.monotonic()
    started = await runtime.start(make_spec(herald.script("signal.pause()")))
    assert before < started.started_at < time.monotonic()


def test_an_order_is_what_a_runtime_writes(tmp_path: Path, make_spec):
    spec: RankSpec = make_spec(("a",), env=(("A", "1"),), secret_env=(("B", "2"),), prepare=("p",))
    path = tmp_path / "spec"
    runtime = ProcessRuntime(tmp_path, "fleet")
    written = runtime._order(spec, runtime._files(spec.id), 7.5)
    path.write_text(json.dumps(written))
    order = Order.take(path)
    assert (order.argv, dict(order.env), dict(order.secret_env)) == (["a"], {"A": "1"}, {"B": "2"})
    assert (order.rank, order.digest, order.fleet) == (str(spec.id), spec.digest, "fleet")
    assert not path.exists()

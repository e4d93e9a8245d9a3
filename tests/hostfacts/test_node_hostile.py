"""Parsers of node facts against hostile output: a value or a FactError, fast, safe for a terminal."""

import json
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import FactError
from sparkfleet.hostfacts import (
    clock,
    container,
    disk,
    gpu,
    kernel_log,
    machine,
    memory,
    node,
    privileges,
    processes,
    venv,
)
from sparkfleet.hostfacts.fact import MOST_CHARACTERS
from sparkfleet.hostfacts.network import listening_sockets

FACTS = [
    fact
    for module in (
        clock, container, disk, gpu, machine, kernel_log, memory, node, privileges, processes, venv, listening_sockets,
    )
    for name, fact in vars(module).items()
    if name.startswith("Read")
]  # fmt: skip
FACTS = list(dict.fromkeys(FACTS))

SEEDS = [
    "/etc/dgx-release:A=1", "/proc/cmdline:\x1b]0;x\x07", "MemTotal: 5 kB\nMemAvailable: 4 kB\nMemFree: 1 kB",
    "NVIDIA GB10, 580.142", "LISTEN 0 1 [::1]:22 *:*", "LISTEN 0 1 x:99 *:*", "uid=(", "1.5", "NTPSynchronized=",
    "Max locked memory  99 x bytes\nMax open files 1 1", "ii |a|b", "Leap status : x", '{"ServerErrors": [[1]]}',
    "0000:01:00.0 Ethernet [0200]: x [15b3:1021]", "\ud800", "99" * 3000, "٣" * 50, "nan", "inf",
    '["\\ud800", 1]', '[1e400, "x"]', '{"places": {"a": ["x", [1, 2, 3]]}, "models": [["m", -1, 1]]}',
]  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
    max_leaves=20,
)
lines = st.lists(st.sampled_from(SEEDS) | st.text(max_size=60), max_size=8).map("\n".join)
outputs = (
    st.text()
    | lines
    | json_values.map(json.dumps)
    | st.binary(max_size=400).map(lambda some: some.decode("utf-8", "surrogateescape"))
)


def test_every_fact_is_covered():
    assert len(FACTS) >= 25


def assert_value_or_error(read):
    """The message is short, and safe for a terminal."""
    try:
        said = str(read())
    except FactError as error:
        said = str(error)
        assert len(said) < 4000
    assert "\x1b" not in said


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
@given(exit_code=st.sampled_from([0, 0, 0, 1, 2, 18, 127, -9]), stdout=outputs, stderr=outputs)
def test_a_value_or_a_fact_error(fact, exit_code, stdout, stderr):
    assert_value_or_error(lambda: fact.parse(stdout))
    assert_value_or_error(lambda: fact.answer(exit_code, stdout, stderr))


HUGE = [
    "[" * 500_000,
    "x" * 2_000_000,
    "\n" * 2_000_000,
    " " * 2_000_000,
    "9" * 2_000_000,
    "LISTEN " * 300_000,
    "MemTotal:" + " " * 2_000_000 + "x",
    "MemTotal:" + "\t" * 1000 + "\n" + ("CUDA Version" + " " * 500 + "\n") * 2000,
    "uid=" + "1(" * 1_000_000,
    "/proc/cmdline:" * 100_000,
    "NVRM: Xid (" * 150_000,
    "0000:01:00.0 " + "[" * 1_000_000,
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
def test_megabytes_of_garbage_are_parsed_fast(fact):
    began = time.process_time()
    for output in HUGE:
        assert_value_or_error(lambda output=output: fact.answer(0, output, output))
    assert time.process_time() - began < 10


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
def test_oversized_output_is_refused(fact):
    assert_value_or_error(lambda: fact.answer(0, "{" + "\x1b[2J" * (MOST_CHARACTERS // 4 + 10), ""))


@pytest.mark.parametrize(
    "fact",
    [
        processes.ReadHoldingProcesses,
        disk.ReadDisks,
        privileges.ReadServices,
        venv.ReadPythonEnvironment,
        node.ReadProcessors,
        node.ReadMemory,
        memory.ReadMemoryMap,
        memory.ReadKernel,
        machine.ReadIdentity,
        privileges.ReadLockedMemory,
        privileges.ReadLockedMemoryOfKernel,
        privileges.ReadOpenFiles,
        privileges.ReadUser,
        clock.ReadClock,
    ],
    ids=lambda fact: fact.__name__,
)
def test_this_machine_answers(fact):
    argv = [sys.executable if word == "python3" else word for word in fact.argv]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert fact.answer(done.returncode, done.stdout, done.stderr) is not None

"""The bounds on vLLM's waits, around a class like vLLM's."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from sparkfleet.engines.registry import engine_by_name
from sparkfleet.engines.vllm_plugins import bounded_waits
from sparkfleet.engines.vllm_plugins.bounded_waits import SLEEP_MS, SPIN
from sparkfleet.engines.vllm_plugins.rank_files import WAITS

VLLM = engine_by_name("vllm")
PLACE = "vllm.distributed.device_communicators"


@pytest.fixture
def waits(monkeypatch):
    """vLLM's class: it spins for a second, and notes each of its sleeps."""

    class SpinCondition:
        def __init__(self, is_reader, busy_loop_s=1):
            self.busy_loop_s = busy_loop_s if is_reader else 0
            self.sleeps = []

        def wait(self, timeout_ms=None):
            self.sleeps.append(timeout_ms)

    whole = ModuleType(PLACE)
    whole.shm_broadcast = SimpleNamespace(SpinCondition=SpinCondition)
    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, PLACE, whole)
    monkeypatch.setenv(SPIN, "0.002")
    return SpinCondition


def test_a_reader_spins_for_the_seconds_of_the_variable_and_a_writer_never(waits):
    bounded_waits.register()
    assert [waits(is_reader).busy_loop_s for is_reader in (True, False)] == [0.002, 0]


@pytest.mark.parametrize("text", ["", "soon", "-1", "1"])
def test_a_variable_without_a_number_leaves_the_spinning_as_it_is(waits, monkeypatch, text):
    monkeypatch.setenv(SPIN, text)
    bounded_waits.register()
    assert waits(True).busy_loop_s == 1


def test_a_build_that_spins_for_another_time_keeps_it(waits):
    bounded_waits.register()
    assert waits(True, busy_loop_s=0.004).busy_loop_s == 0.004


@pytest.mark.parametrize(
    ("asked", "given"), [(None, SLEEP_MS), (60_000, SLEEP_MS), (20, 20), (0, 0), (-3, 0)]
)
def test_no_sleep_is_longer_than_the_bound_although_a_wake_up_was_lost(waits, asked, given):
    bounded_waits.register()
    one = waits(True)
    one.wait(timeout_ms=asked)
    assert one.sleeps == [given]


def test_it_may_be_loaded_twice(waits):
    bounded_waits.register()
    first = waits.wait
    bounded_waits.register()
    assert waits.wait is first


@pytest.mark.parametrize("here", [None, ModuleType(PLACE), SimpleNamespace(shm_broadcast=SimpleNamespace())])
def test_a_release_without_such_waits_is_left_as_it_is(monkeypatch, here):
    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, PLACE, here)
    bounded_waits.register()


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_has_it_as_a_plugin_if_the_variable_is_set(candidate, context, rank):
    one = VLLM.launch(candidate(nodes=2, env=((SPIN, "0.002"),)), context(rank, 2))
    names = [file.name for file in one.files]
    assert f"{WAITS[0].name.removesuffix('.py')}-1.dist-info/entry_points.txt" in names
    assert dict(one.env)["PYTHONPATH"].split(":")[0] == "/state/r"
    without = VLLM.launch(candidate(nodes=2), context(rank, 2))
    assert not {file.name for file in without.files} & {file.name for file in WAITS}


def test_in_a_container_the_start_script_puts_it_on_the_path(candidate, context):
    fields = {"nodes": 2, "runtime": "container", "image": "i@sha256:0", "env": ((SPIN, "0.002"),)}
    headless = VLLM.launch(candidate(**fields), context(1, 2, model_path="/models/m"))
    assert headless.argv[:3] == ("sh", "/run/sparkfleet/start.sh", "vllm")
    assert [file.name for file in headless.files] == [*(file.name for file in WAITS), "start.sh"]

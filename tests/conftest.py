"""Fixtures and settings of every test."""

import gc
import json
import os
import signal
from pathlib import Path

import huggingface_hub.constants  # noqa: F401  # before the variable is set: the library reads it once, at its import
import pytest
from full_record import PIECES, TestRecord, piece_of
from hypothesis import HealthCheck, settings
from path_order import in_order_of_the_tree

# A busy machine takes its time; what is slow is measured in benchmarks/, not here. Each run draws other examples: those of a
# change are many and try fewer each than a full run.
settings.register_profile(
    "change", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40
)
settings.register_profile("full run", settings.get_profile("change"), max_examples=100)
settings.load_profile("change")


# A shell ignores Ctrl-C for what it starts in the background, and children inherit that: tests send it to commands.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the real Hub; those of a Hub on loopback unset it
# Set in many containers; an owner's output is buffered until a command ends.
os.environ.pop("PYTHONUNBUFFERED", None)
TIERS = ("smoke", "full", "opt_in")
REAL_PARTS = tuple(Path(__file__).parent / name for name in ("integration", "lab"))
"""Directories whose tests need root, and minutes."""
FLEET_S = 1200
"""The longest of a test of a fleet, with what it shares: images that are made, models that are trained, nodes that start."""


def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true", help="a test that is skipped has failed")
    parser.addoption(
        "--real",
        action="store_true",
        help="real engines and production timeouts also where a fake engine and seconds prove the same of the rest",
    )
    full = parser.getgroup("scripts/test-full")
    full.addoption("--piece", choices=PIECES, help="only the tests of this piece of the full run")
    full.addoption("--record", type=Path, help="append each test's result to this file")
    full.addoption("--leave-out", type=Path, help="a file of tests that are not run, one a line")
    full.addoption("--write-pieces", type=Path, help="write the piece of each test that is collected")


def pytest_configure(config):
    config.args[:] = in_order_of_the_tree(config.args)
    if config.getoption("--piece"):
        settings.load_profile("full run")
    record = config.getoption("--record")
    if record and not hasattr(config, "workerinput"):
        config.pluginmanager.register(TestRecord(record, config.getoption("--piece")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Give each test its tier and its time. One worker trains all models: each process would train its own.

    Files that share a fleet follow each other, and those without one come first, while none stands. With `--dist loadgroup`
    each fleet has one worker.
    """
    items.sort(key=_shared_fleet)
    for item in items:
        tiers = {mark.name for mark in item.iter_markers()} & set(TIERS)
        if not tiers and any(place in item.path.parents for place in REAL_PARTS):
            item.add_marker("smoke")
            tiers = {"smoke"}
        if tiers and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(FLEET_S))
        if _shared_fleet(item):
            item.add_marker("fleet")
            item.add_marker(pytest.mark.xdist_group(f"fleet{_shared_fleet(item)}"))
        if item.path.parent.name == "tiny_models":
            item.add_marker(pytest.mark.xdist_group("tiny_models"))
    _full_run(config, items)


def pytest_collection_finish():
    """Leave modules and collected tests, a million objects, out of each search for garbage, and search less often: that took
    an eighth of the processor time of the planner's tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def _full_run(config, items):
    """Write the pieces of the full run, or keep the tests of one and of these what has not passed yet."""
    if file := config.getoption("--write-pieces"):
        file.write_text(json.dumps({item.nodeid: _piece(item) for item in items}), encoding="utf-8")
    if piece := config.getoption("--piece"):
        file = config.getoption("--leave-out")
        left_out = set(file.read_text(encoding="utf-8").splitlines()) if file else set()
        kept, others = [], []
        for item in items:
            (kept if _piece(item) == piece and item.nodeid not in left_out else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = kept


def _piece(item):
    names = {mark.name for mark in item.iter_markers()}
    return piece_of(item.path.parent, Path(__file__).parent, names)


def _shared_fleet(item):
    """0 without one, 1 of the two Sparks, 2 of this machine."""
    names = getattr(item, "fixturenames", ())
    return 0 if "standing" not in names else 1 if "pair" in names else 2


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"skipped: {call.excinfo.value if call.excinfo else report.longrepr}"
    return report

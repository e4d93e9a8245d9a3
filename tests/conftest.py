"""What holds for every test."""

import os

import huggingface_hub.constants  # noqa: F401  # before the variable is set: the library reads it once, at its import
import pytest
from hypothesis import HealthCheck, settings

# A busy machine takes its time; what is slow is measured in benchmarks/, not here.
settings.register_profile("sparkfleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sparkfleet")


os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the real Hub; those of a Hub on loopback unset it


def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true", help="a test that is skipped has failed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"skipped: {call.excinfo.value if call.excinfo else report.longrepr}"
    return report

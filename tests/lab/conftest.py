from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkfleet.lab import Lab
from sparkfleet.lab.errors import LabError
from sparkfleet.lab.lifecycle import check_host


def why_not() -> str:
    """Reason why labs cannot be made here; "" if they can."""
    try:
        check_host()
    except LabError as error:
        return error.what
    return "" if Path("/sbin/ip").exists() and os.access("/run", os.W_OK) else "no iproute2"


@pytest.fixture(scope="session")
def root() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def pair(root: None) -> Iterator[Lab]:
    """Two Sparks with a cable, shared by tests that leave it as they found it."""
    with Lab.up(nodes=2) as lab:
        yield lab


@pytest.fixture
def lab(pair: Lab) -> Iterator[Lab]:
    """The shared pair; whatever a test did to it is taken back."""
    yield pair
    pair.mend("spark1-spark2")
    for node in pair.nodes:
        pair.boot(node.name)
        pair.heal(node.name)

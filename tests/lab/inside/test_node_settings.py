from __future__ import annotations

import re

import pytest

from sparkfleet.lab.inside.node_settings import KNOBS, NodeSettings, problem


def test_healthy_values_are_accepted() -> None:
    for name, knob in KNOBS.items():
        assert problem(name, knob.healthy) is None
        assert all(problem(f"{name}.{device}", knob.healthy) is None for device in knob.per)
        re.compile(knob.accepts)


@pytest.mark.parametrize(
    ("key", "value"),
    [("nothing", "1"), ("driver", "; reboot"), ("driver", ""), ("gid.eth0", "missing"), ("driver.rocep1s0f1", "1.2"),
     ("clock_skew", "soon"), ("groups", "docker wheel"), ("disk", "20"), ("machine_id", "a/b"), ("", ""),
     ("memlock", "-1\n"), ("rdma_gbit", "0"), ("rdma_gbit", "-1"), ("rdma_us", "0.0")],
)  # fmt: skip
def test_invalid_values_are_refused(key: str, value: str) -> None:
    assert problem(key, value)


def test_one_device_may_differ_from_the_others() -> None:
    settings = NodeSettings({"rdma_gbit": "90", "rdma_gbit.rocep1s0f1": "13.2"})
    assert settings.number("rdma_gbit", "rocep1s0f1") == 13.2
    assert settings.number("rdma_gbit", "roceP2p1s0f1") == 90
    assert NodeSettings({}).text("driver") == KNOBS["driver"].healthy


def test_an_empty_value_is_a_value() -> None:
    assert NodeSettings({"groups": ""}).text("groups") == ""

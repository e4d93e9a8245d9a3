"""The controller is created once Ray listens; a Ray that ends before is named at once."""

import sys
import time
from types import SimpleNamespace

import pytest

from sparkfleet.errors import ControlError
from sparkfleet.node_daemon import start_controller as module
from sparkfleet.node_daemon.start_controller import start_controller
from sparkfleet.runtime.files.fleet_paths import FleetPaths


def test_a_ray_that_ends_before_it_listens_is_named_without_joining_it(tmp_path, monkeypatch):
    """`ray.init` blocks for 40 s without a GCS, again and again: `up` gave up after 180 s without a reason."""
    joined = []
    monkeypatch.setitem(
        sys.modules, "ray", SimpleNamespace(init=lambda **_: joined.append(1) or time.sleep(5))
    )
    monkeypatch.setattr(module, "ray_environment", lambda _: {})
    polls = iter([None, None, 1])
    ray_head = SimpleNamespace(poll=lambda: next(polls))
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    with pytest.raises(ControlError, match="Ray or the controller did not start") as failed:
        start_controller(paths, None, SimpleNamespace(ray="127.0.0.1:1"), ray_head)
    assert str(paths.logs / "ray.log") in failed.value.do
    assert joined == []

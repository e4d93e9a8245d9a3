"""The controller is created once Ray listens; a Ray that ends before is named at once."""

import os
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


def test_it_joins_ray_outside_a_directory_whose_clone_would_hide_the_package(tmp_path, monkeypatch):
    """In a home with a clone named sparkfleet the controller failed at its import: with systemd nothing started."""
    seen = []
    ray = SimpleNamespace(
        init=lambda **_: seen.append(os.getcwd()),
        shutdown=lambda: None,
        exceptions=SimpleNamespace(RayError=RuntimeError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(module, "ray_environment", lambda _: {})
    monkeypatch.setattr(module, "ray_init_arguments", lambda _: {})
    monkeypatch.setattr(module, "listens", lambda _: True)
    monkeypatch.setattr(module, "_create", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    start_controller(FleetPaths(tmp_path / "home"), None, SimpleNamespace(ray="127.0.0.1:1"), None)
    assert seen == ["/"]
    assert os.getcwd() == str(tmp_path)

"""The deployment of a group's actor in Ray Serve."""

import subprocess
import sys

from sparkfleet.controlplane.policy.pending_starts import SILENT_S

CHECKS_S = """
from ray.serve._private.constants import REPLICA_HEALTH_CHECK_UNHEALTHY_THRESHOLD
from sparkfleet.controlplane.ray.ray_serve_backend import GroupReplica
print(REPLICA_HEALTH_CHECK_UNHEALTHY_THRESHOLD * GroupReplica._deployment_config.health_check_timeout_s)
"""
"""Run apart: Ray Serve warns when it is imported, and warnings are errors here."""


def test_serve_replaces_no_replica_on_a_node_before_ray_counts_the_node_as_gone():
    """It did so 30 s after a loss of power. Ray then reserved a bundle on the dead node, and waited 90 s for its answer, in
    which no group of the fleet could be placed on any other node."""
    printed = subprocess.run(
        [sys.executable, "-c", CHECKS_S], capture_output=True, text=True, check=True, timeout=120
    )
    assert float(printed.stdout) > SILENT_S + 10


LISTS = """
import asyncio, ray
from types import SimpleNamespace as Namespace
from ray.serve.schema import ApplicationStatus
from sparkfleet.controlplane.ray import ray_serve_backend as backend

def named(app, state, replica):
    return {"name": f"SERVE_REPLICA::{app}#group#{replica}", "state": state}

def app(name, status):
    return Namespace(name=name, app_status=Namespace(status=status, message=""), deployment_statuses=())

groups = [named("m--g1-0", "PENDING", "a"), named("m--g1-0", "CREATED", "b"), named("m--g1-01", "PENDING", "c")]
groups += [named("m--g1-0", "REMOVED", "d"), named("m--g1-0", "PENDING", "gone"), named("m--g1-1", "PENDING", "e")]

def actor(name, namespace):
    if name.endswith("gone"):
        raise ValueError(name)
    return name.removeprefix("SERVE_REPLICA::")

apps = [app("m--g1-0", ApplicationStatus.DELETING), app("m--g1-1", ApplicationStatus.DEPLOYING)]
backend.app_statuses = lambda: apps
ray.util.placement_group_table = lambda: dict(enumerate(groups))
ray.get_actor = actor
ray.kill = lambda name, no_restart: print("kill", name)
print([one.status for one in asyncio.run(backend.RayServeBackend().list())])
"""


def test_a_deleted_group_that_was_never_placed_is_ended():
    """Serve asks its actor to end and waits for the answer: `drain` and `delete` of a group on a node without power took as
    long as a drain may, ten minutes (eight simulated Sparks). Ended with the deletion alone, Serve made another one."""
    printed = subprocess.run(
        [sys.executable, "-c", LISTS], capture_output=True, text=True, check=True, timeout=120
    )
    assert printed.stdout.split("\n")[:-1] == ["kill m--g1-0#group#a", "['retiring', 'starting']"]

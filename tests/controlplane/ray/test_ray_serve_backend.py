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

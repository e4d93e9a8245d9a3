"""The gateway's application in Ray Serve: deployed if it is missing or given up, and left alone while it serves."""

import json
import subprocess
import sys

DEPLOYED = """
import json
from types import SimpleNamespace
from ray.serve.schema import ApplicationStatus
from sparkfleet.controlplane.ray import gateway_upkeep
from sparkfleet.gateway.listening import GatewayListening
from sparkfleet.gateway.ray_serve import GatewayConfig

listening = GatewayListening(host="127.0.0.1", port=8000, max_body_bytes=1)
config = GatewayConfig(listening=listening, controller="c", namespace="n")
deployed = {}
for status in (None, *ApplicationStatus):
    started = []
    found = [] if status is None else [SimpleNamespace(name="gateway", app_status=SimpleNamespace(status=status))]
    gateway_upkeep.app_statuses = lambda: found
    gateway_upkeep.run_without_waiting = started.append
    gateway_upkeep.deploy_gateway(config, "this")
    deployed[str(status and status.value)] = [target.name for target in started]
print(json.dumps(deployed))
"""
"""Run apart: Ray Serve warns when it is imported, and warnings are errors here."""


def test_only_a_gateway_that_is_missing_or_given_up_is_deployed():
    """Serve gave it up after three starts, as its port was in use, and it never came back when the port was free."""
    printed = subprocess.run(
        [sys.executable, "-c", DEPLOYED], capture_output=True, text=True, check=True, timeout=120
    )
    deployed = json.loads(printed.stdout)
    assert deployed.pop("None") == deployed.pop("DEPLOY_FAILED") == ["gateway"]
    assert deployed.keys() >= {"DEPLOYING", "RUNNING", "UNHEALTHY", "DELETING"}
    assert not any(deployed.values())

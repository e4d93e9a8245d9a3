"""Refuses a stored plan whose declared port the gateway or another deployment has on the same node, and an endpoint at the
port of a deployment. Pure: a new plan avoids such ports."""

from __future__ import annotations

from collections.abc import Iterable

from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.errors import ControlError
from sparkfleet.planner.types.plan import DeploymentPlan


def refuse_taken_ports(
    plan: DeploymentPlan, status: FleetStatus, endpoint_ports: Iterable[tuple[str, int]]
) -> None:
    """Raises ControlError if the gateway or another deployment of the fleet has a port of this plan.

    Args:
        endpoint_ports: node and port of each listener of the gateway that no custom workload can have besides.
    """
    for node, port in sorted(plan.declared_ports.intersection(endpoint_ports)):
        raise ControlError(
            f"The gateway has port {port} of {node}, which this generation of {plan.name} needs.",
            means="Nothing was changed: the second of two that listen on one port does not start.",
            do=f"Apply {plan.name} with another `port` (also in its `command`), or give the gateway another one: `gateway:"
            " {port: …}` in the inventory, then `sparkfleet up`.",
        )
    for other in status.deployments:
        if other.plan is None or other.name == plan.name:
            continue
        for node, port in sorted(plan.declared_ports & other.plan.declared_ports):
            raise ControlError(
                f"{other.name} has port {port} of {node}, which this generation of {plan.name} needs.",
                means="Nothing was changed: the second of two that listen on one port does not start.",
                do=f"Give {other.name} another `port` (also in its `command`) and apply it, or"
                f" `sparkfleet delete {other.name}`; or apply {plan.name} with another port.",
            )


def refuse_endpoint_ports(plans: Iterable[DeploymentPlan], endpoint_ports: Iterable[tuple[str, int]]) -> None:
    """Raises ControlError if a deployment has a port at which the endpoint is to listen.

    Args:
        plans: of all deployments.
        endpoint_ports: as for `refuse_taken_ports`.
    """
    wanted = frozenset(endpoint_ports)
    for plan in plans:
        for node, port in sorted(plan.declared_ports & wanted):
            raise ControlError(
                f"{plan.name} has port {port} of {node}, at which the endpoint is to listen.",
                means="Nothing was changed: the second of two that listen on one port does not start.",
                do=f"Give the endpoint another port in the inventory, `gateway: {{port: …}}`; or apply {plan.name} with"
                f" another `port` (also in its `command`). While the fleet serves, `sparkfleet delete {plan.name}` frees"
                " it, too.",
            )

"""Applications in Ray Serve: one per generation of a deployment, one replica per group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.schema import ApplicationStatus

from sparkfleet.control.apps import CONTROLLER, GROUP_DEPLOYMENT, NAMESPACE
from sparkfleet.control.group import Group
from sparkfleet.control.order import GroupOrder
from sparkfleet.control.status import App, AppStatus, GroupReport, app_name, parse_app_name
from sparkfleet.errors import EngineError
from sparkfleet.nodes.runtime.process import ProcessRuntime

log = logging.getLogger(__name__)

HEALTH_PERIOD_S = 1.0
MAX_STARTS = 2
"""How often Serve constructs a replica that fails before the application counts as failed."""

_STATUS: dict[ApplicationStatus, AppStatus] = {
    ApplicationStatus.RUNNING: "running",
    ApplicationStatus.DEPLOY_FAILED: "failed",
    ApplicationStatus.DELETING: "retiring",
}


class ServeApps:
    """Ray Serve. Its calls block, so they run in a thread."""

    async def list(self) -> tuple[App, ...]:
        """The applications of groups, from Serve's own status."""
        status = await asyncio.to_thread(serve.status)
        return tuple(
            App(
                deployment=parsed[0],
                generation=parsed[1],
                status=_STATUS.get(app.status, "starting"),
                message=app.message,
            )
            for name, app in status.applications.items()
            if (parsed := parse_app_name(name)) is not None
        )

    async def deploy(self, order: GroupOrder) -> None:
        """One Serve application with one replica per group."""
        target = serve.RunTarget(
            target=GroupReplica.options(  # type: ignore[attr-defined]  # added by the decorator
                num_replicas=order.replicas,
                graceful_shutdown_timeout_s=order.drain_s + 20,
            ).bind(order.model_dump_json()),
            name=app_name(order.deployment, order.generation),
            route_prefix=None,
        )
        await asyncio.to_thread(run_without_waiting, target)

    async def retire(self, deployment: str, generation: int) -> None:
        """Serve drains: the replica's destructor waits for the engine to be idle."""
        await asyncio.to_thread(serve.delete, app_name(deployment, generation), _blocking=False)


def run_without_waiting(target: serve.RunTarget) -> None:
    """Hand an application to Serve and return at once; what becomes of it shows in its status."""
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


class ControllerReporter:
    """Delivers reports to the controller's actor without waiting, and finds it again after it was restarted."""

    def __init__(self) -> None:
        self._controller: Any = None

    def __call__(self, report: GroupReport) -> None:
        """Send; a controller that is away hears the next one."""
        with contextlib.suppress(Exception):
            if self._controller is None:
                self._controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
            self._controller.report.remote(report.model_dump_json())


@serve.deployment(
    name=GROUP_DEPLOYMENT,
    max_ongoing_requests=10_000,
    health_check_period_s=HEALTH_PERIOD_S,
    health_check_timeout_s=10,
    graceful_shutdown_wait_loop_s=0.1,
    max_constructor_retry_count=MAX_STARTS,
    ray_actor_options={"num_cpus": 0},
)
class GroupReplica:
    """The actor of a group. Serve starts it, asks it for its health, and replaces it when it dies."""

    async def __init__(self, order_json: str) -> None:  # type: ignore[misc]  # Serve awaits it
        order = GroupOrder.model_validate_json(order_json)
        secret = (Path(order.state_dir) / "engine.secret").read_text()
        runtime = ProcessRuntime(Path(order.run_dir), order.fleet)
        self._drain_s = order.drain_s
        self._context = order.candidate.context
        self._watch: asyncio.Task[None] | None = None
        self._group = Group(order, runtime, secret, ControllerReporter(), _node_name())
        await self._group.start()
        self._watch = asyncio.create_task(self._die_with_the_engine())

    def record_replica_metadata(self) -> dict[str, object]:
        """What the gateway needs to send bytes here; captured by Serve when the replica becomes ready."""
        return {"url": self._group.url, "group": self._group.name, "context": self._context}

    async def check_health(self) -> None:
        """Raise when the engine is gone; the watch normally ends the process before Serve asks."""
        if self._group.exited is not None:
            raise EngineError("The engine has exited.")

    async def __del__(self) -> None:
        """Serve awaits this on a graceful shutdown: drain, then stop the engine."""
        if self._watch is not None:
            self._watch.cancel()
        await self._group.stop(self._drain_s)

    async def _die_with_the_engine(self) -> None:
        await self._group.watch()
        await asyncio.sleep(0.2)  # the report is on its way
        # Raising would wait for three failed health checks; a dead actor is replaced at once.
        os.kill(os.getpid(), signal.SIGKILL)


def _node_name() -> str:
    labels = ray.get_runtime_context().get_node_labels()
    return str(labels.get("sparkfleet.node") or ray.util.get_node_ip_address())

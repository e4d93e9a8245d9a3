"""Applications in Ray Serve: one per group, with one replica, placed on the nodes of its plan."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

import ray
from ray import serve
from ray.serve._private.application_state import StatusOverview
from ray.serve._private.common import REPLICA_ID_FULL_ID_STR_PREFIX
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from sparkfleet.controlplane.ray.controller_reporter import ControllerReporter
from sparkfleet.controlplane.ray.ray_process import NODE_LABEL
from sparkfleet.controlplane.serve_backend import CONTROLLER, NAMESPACE
from sparkfleet.controlplane.state.status import GROUP_DEPLOYMENT, App, AppStatus, app_name, parse_app_name
from sparkfleet.errors import EngineError
from sparkfleet.group.crash_backoff import Backoff
from sparkfleet.group.end_note import EndNote
from sparkfleet.group.group import Barred, Group, Wanted, die_with_the_engine
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.ranks.local_rank import LocalRank
from sparkfleet.group.ranks.rank_holder import RankHolder
from sparkfleet.group.ranks.remote_rank import RankObservation, RemoteRank
from sparkfleet.group.start.speed import MeasuringTurns
from sparkfleet.runtime.base import RankStatus
from sparkfleet.runtime.boot_id import this_boot
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.hang_guard import HangGuard, take_note
from sparkfleet.runtime.named_actor import NamedActor
from sparkfleet.runtime.process_runtime import ProcessRuntime

log = logging.getLogger(__name__)

HEALTH_PERIOD_S = 1.0
HEALTH_TIMEOUT_S = 25.0
"""Serve replaces a replica after three checks without an answer: 75 s, when Ray has counted a node without power as gone
(`RAY_GONE_S`). Before that Ray's GCS would reserve the replica's bundle on that node and wait 90 s for the answer, and it
places one placement group at a time (2.60, gcs_placement_group_manager.cc): nothing in the fleet could start meanwhile."""
BUNDLE = {"CPU": 0.001}
"""Ray resources of a rank: next to nothing, since the plan accounts for memory and GPU."""
HUNG_S = 8.0
"""Seconds without a step of a group's actor after which it is ended and replaced: before its silence takes the group out of
the gateways' table (`report_cache.STALE_S`), and long before Serve's three health checks."""
WANTED_S = 5.0
"""Time limit for the controller to answer a group's actor that is being stopped, or that is to start its engine."""
MAX_STARTS = 1
"""Failed constructions of a replica after which the application counts as failed and the ladder takes over."""

_STATUS: dict[ApplicationStatus, AppStatus] = {
    ApplicationStatus.RUNNING: "running",
    ApplicationStatus.DEPLOY_FAILED: "failed",
    ApplicationStatus.DELETING: "retiring",
}


class RayServeBackend:
    """Ray Serve. Its calls block, so they run in a thread."""

    async def list(self) -> tuple[App, ...]:
        """The applications of groups, from Serve's own status. Raises RayServeException if Serve does not run.

        Replicas of deleted ones that were never placed are ended, again at each look: until Serve has come to the deletion,
        it makes another.
        """
        found = await asyncio.to_thread(app_statuses)
        deleted = [app.name for app in found if app.app_status.status is ApplicationStatus.DELETING]
        if deleted:
            await asyncio.to_thread(_end_unplaced, deleted)
        return tuple(
            App(
                deployment=parsed[0],
                generation=parsed[1],
                replica=parsed[2],
                status=_STATUS.get(app.app_status.status, "starting"),
                message=_message(app),
            )
            for app in found
            if (parsed := parse_app_name(app.name)) is not None
        )

    async def deploy(self, launch: GroupLaunch) -> None:
        """Deploys a placement group with a bundle per rank, each on its node; the replica is in the first."""
        target = serve.RunTarget(
            target=GroupReplica.options(  # type: ignore[attr-defined]  # added by the decorator
                graceful_shutdown_timeout_s=launch.drain_s + 20,
                placement_group_bundles=[BUNDLE for _ in launch.placements],
                placement_group_strategy="STRICT_SPREAD",
                placement_group_bundle_label_selector=[
                    {NODE_LABEL: placement.node} for placement in launch.placements
                ],
            ).bind(launch.model_dump_json()),
            name=app_name(launch.deployment, launch.generation, launch.replica),
            route_prefix=None,
        )
        await asyncio.to_thread(run_without_waiting, target)

    async def retire(self, deployment: str, generation: int, replica: int) -> None:
        """Deletes it; Serve drains: the replica's destructor waits for the engine to be idle."""
        name = app_name(deployment, generation, replica)
        await asyncio.to_thread(serve.delete, name, _blocking=False)

    async def renew(self) -> None:
        """Restarts Serve's controller, which finds its replicas again.

        It checks a replica once the wall clock has passed its last check (2.60, deployment_state.py:
        `_should_start_new_health_check`), so after a clock that was set back it would replace none for as long.
        """
        await asyncio.to_thread(_restart, SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)


def _end_unplaced(apps: Iterable[str]) -> None:
    """Ends the actors of deleted applications that wait for a node which is gone.

    Serve asks a replica to end and waits for its answer, as long as a drain may take (2.60, deployment_state.py:
    `check_stopped`). One that has never been placed cannot answer: the application would be "retiring" for ten minutes.
    Serve gives a replica and its placement group one name.
    """
    prefixes = tuple(f"{REPLICA_ID_FULL_ID_STR_PREFIX}{app}#" for app in apps)
    for one in ray.util.placement_group_table().values():
        if one["state"] == "PENDING" and one["name"].startswith(prefixes):
            with suppress(ValueError):  # it has ended meanwhile
                ray.kill(ray.get_actor(one["name"], namespace=SERVE_NAMESPACE), no_restart=True)


def _restart(name: str, namespace: str) -> None:
    """Ends the process of an actor; Ray starts it again."""
    ray.kill(ray.get_actor(name, namespace=namespace), no_restart=False)


def app_statuses() -> list[StatusOverview]:
    """The status of each application in Serve. Raises RayServeException if Serve does not run.

    The public `serve.status()` validates the whole configuration of every application, and pickles the class of its router
    each time: with eight applications 67 ms of processor time here and 7 ms in Serve's controller, against 2 and 1 ms
    (Ray 2.60, `benchmarks/app_statuses.py`). It is read every second.
    """
    client = _get_global_client()
    return list(client.list_serve_statuses())


def _message(app: StatusOverview) -> str:
    """Serve's message about an application; that of its deployment is preferred."""
    messages = [one.message for one in app.deployment_statuses if one.message]
    return str(messages[0]).strip().rpartition("\n")[2] if messages else str(app.app_status.message)


def run_without_waiting(target: serve.RunTarget) -> None:
    """Passes an application to Serve and returns at once; its status shows the outcome."""
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def _wanted_by_controller(launch: GroupLaunch, actor: NamedActor) -> Wanted:
    """Asks the controller; True if it does not answer: what is not known is never taken for "not wanted"."""

    async def wanted() -> bool:
        try:
            async with asyncio.timeout(WANTED_S):
                controller = await actor.find()
                group = (launch.deployment, launch.generation, launch.replica)
                return bool(await controller.is_still_wanted.remote(group, launch.rung))
        except Exception as error:
            log.warning("%s is kept: the controller does not answer: %r", launch.name, error)
            return True

    return wanted


def _barred_by_controller(launch: GroupLaunch, actor: NamedActor) -> Barred:
    """Asks the controller for drained nodes; "" if it does not answer: an engine that is wanted starts without it."""

    async def barred() -> str:
        try:
            async with asyncio.timeout(WANTED_S):
                controller = await actor.find()
                return str(await controller.bars.remote([placement.node for placement in launch.placements]))
        except Exception as error:
            log.warning("%s starts: the controller does not answer: %r", launch.name, error)
            return ""

    return barred


@serve.deployment(
    name=GROUP_DEPLOYMENT,
    max_ongoing_requests=10_000,
    health_check_period_s=HEALTH_PERIOD_S,
    health_check_timeout_s=HEALTH_TIMEOUT_S,
    graceful_shutdown_wait_loop_s=0.1,
    max_constructor_retry_count=MAX_STARTS,
    ray_actor_options={"num_cpus": 0},
)
class GroupReplica:
    """The actor of a group. Serve starts it, checks its health, and replaces it when it dies."""

    async def __init__(self, launch_json: str) -> None:  # type: ignore[misc]  # Serve awaits it
        launch = GroupLaunch.of_serve(launch_json)
        paths = FleetPaths.of_this_process()
        self._drain_s = launch.drain_s
        self._context = launch.candidate.context
        self._watch: asyncio.Task[None] | None = None
        first = _local_rank(paths, launch, 0)
        ranks: list[RankHolder] = [first, *_remote_ranks(launch)]
        # One file per rung: a rung does not wait for the failures of another.
        slug = launch.rank_id(paths.label).slug
        files = paths.rank_files(slug)
        begun, hung = files / f"begun.{launch.rung}", files / "hung"
        controller = NamedActor(CONTROLLER, NAMESPACE)
        self._group = Group(
            launch,
            ranks,
            ControllerReporter(controller),
            Backoff(begun, launch.timeouts),
            wanted=_wanted_by_controller(launch, controller),
            barred=_barred_by_controller(launch, controller),
            after=take_note(hung),
            turns=MeasuringTurns(paths.run / "measuring"),
            end_note=EndNote(paths.end_note(slug), launch.placements[0].node, this_boot()),
            token_secret=lambda: first.token_secret,
        )
        self._guard = HangGuard(HUNG_S, hung)
        self._guard.start()
        await self._group.start()
        self._watch = asyncio.create_task(die_with_the_engine(self._group))

    def record_replica_metadata(self) -> dict[str, object]:
        """Replica metadata for the gateway; captured by Serve when the replica becomes ready."""
        group = self._group
        return {"url": group.url, "group": group.name, "secret": group.secret, "context": self._context}

    async def check_health(self) -> None:
        """Raises if the engine is gone; the watch normally ends the process before Serve's check."""
        if self._group.ended:
            raise EngineError(self._group.ended)

    async def __del__(self) -> None:
        """Drains, then stops the engine; Serve awaits this on a graceful shutdown."""
        if self._watch is not None:
            self._watch.cancel()
        await self._group.stop(self._drain_s)
        self._guard.stop()


@ray.remote(num_cpus=0, max_concurrency=100)
class RankActor:
    """Actor that holds one rank on another node than its group's actor. It dies with the group's placement group."""

    def __init__(self, launch_json: str, rank: int) -> None:
        self._rank = _local_rank(FleetPaths.of_this_process(), GroupLaunch.of_serve(launch_json), rank)

    async def adopt(self) -> str:
        """See `RankHolder.adopt`; "" for None."""
        status = await self._rank.adopt()
        return self._seen(status) if status else ""

    async def start(self, rendezvous_port: int) -> str:
        """See `RankHolder.start`."""
        return self._seen(await self._rank.start(rendezvous_port))

    async def status(self) -> str:
        """See `RankHolder.status`."""
        return self._seen(await self._rank.status())

    async def wait(self) -> str:
        """See `RankHolder.wait`."""
        return self._seen(await self._rank.wait())

    async def stop(self) -> None:
        """See `RankHolder.stop`."""
        await self._rank.stop()

    async def release(self) -> None:
        """See `RankHolder.release`."""
        await self._rank.release()

    async def tail(self) -> str:
        """See `RankHolder.tail`."""
        return await self._rank.tail()

    async def memory(self) -> int:
        """See `RankHolder.memory`."""
        return await self._rank.memory()

    async def is_followed(self) -> bool:
        """See `RankHolder.is_followed`."""
        return await self._rank.is_followed()

    def _seen(self, status: RankStatus) -> str:
        return RankObservation(status=status, log_path=self._rank.log_path).model_dump_json()


def _local_rank(paths: FleetPaths, launch: GroupLaunch, rank: int) -> LocalRank:
    runtime = ProcessRuntime(paths.run, paths.label)
    return LocalRank(
        paths, runtime, launch, rank, paths.read_engine_secret(), tokens=paths.read_token_secrets()
    )


def _remote_ranks(launch: GroupLaunch) -> list[RemoteRank]:
    """Actors in the further bundles of this replica's placement group."""
    return [
        RemoteRank(
            placement.node,
            RankActor.options(  # type: ignore[attr-defined]  # added by the decorator
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    ray.util.get_current_placement_group(), placement_group_bundle_index=index
                )
            ).remote(launch.model_dump_json(), index),
            ray.exceptions.RayActorError,
        )
        for index, placement in enumerate(launch.placements)
        if index > 0
    ]

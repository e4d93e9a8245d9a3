"""The watchdog of a node: files that vanish under it, `up` and `down` at once, and what it writes down."""

import asyncio
import contextlib
import errno
import os
import threading
import time

import pytest
from control_values import deployment, inventory, joining, plan
from tmpfiles import is_cleaned

from sparkfleet.controlplane.api.api_models import ApplyRequest, Role, UpRequest
from sparkfleet.controlplane.ray.ray_process import choose_address
from sparkfleet.controlplane.state.store import Store
from sparkfleet.errors import ControlError
from sparkfleet.node_daemon import node_lifecycle, ray_watchdog, service_manager
from sparkfleet.node_daemon.role_guard import read_role, write_role
from sparkfleet.specs.inventory import Gateway

SECRET = "hunter2-of-the-owner"


@pytest.fixture
def started(monkeypatch):
    """Watchdogs that the service manager was asked for; those that end one that runs."""
    found = []
    monkeypatch.setattr(
        service_manager, "start", lambda label, *_, again: found.append(label if again else "kept") or ""
    )
    monkeypatch.setattr(service_manager, "stop", lambda label: None)
    return found


def up(paths, **more):
    return UpRequest(fleet="home", state_dir=str(paths.root), inventory=inventory(), **more)


async def test_a_role_that_vanishes_or_is_spoilt_for_a_while_leaves_the_controller_watched(
    paths, monkeypatch
):
    """The watch ended without a word at the first reading, and nobody made the controller again."""
    watched = asyncio.Event()

    class Watch:
        async def run(self):
            watched.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(ray_watchdog, "watch_of", lambda *_: Watch())
    monkeypatch.setattr(ray_watchdog, "WATCH_S", 0.01)
    paths.role.write_text("garbage")
    watching = asyncio.create_task(ray_watchdog._watch_controller(paths))
    for content in ("garbage", None, ""):
        if content is None:
            paths.role.unlink()
        else:
            paths.role.write_text(content)
        await asyncio.sleep(0.05)
        assert not watching.done()
        assert not watched.is_set()
    write_role(paths, Role(python="p", up=up(paths)))
    async with asyncio.timeout(5):
        await watched.wait()
    watching.cancel()


def test_values_of_env_are_not_in_the_role(paths, started):
    """They were, from the begin of `up` until Ray was there."""
    spec = deployment(env={"HF_TOKEN": SECRET, "VLLM_LOGGING_LEVEL": "DEBUG"})
    planned = plan(env=(("HF_TOKEN", SECRET), ("VLLM_LOGGING_LEVEL", "DEBUG")))
    ray_watchdog.begin_up(up(paths, apply=(ApplyRequest(spec=spec, plan=planned, who="me"),)))
    assert started == [paths.label]
    assert SECRET not in paths.role.read_text()
    (kept,) = read_role(paths).up.apply
    assert kept.spec.env["HF_TOKEN"].startswith("sealed:1:")
    assert kept.spec.env["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert dict(kept.plan.groups[0].choice.candidate.env) == dict(kept.spec.env)
    for file in paths.root.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


def test_an_endpoint_at_the_port_of_a_stored_deployment_is_refused_before_anything_starts(paths, started):
    """The workload, which starts before Ray, had the port, the fleet was "Up", and its gateway never listened."""
    with contextlib.closing(Store(paths.database)) as store:
        store.deployments.put(deployment(), plan(engine="custom", port=5005), "me")
    request = up(paths)
    inventory = request.inventory.model_copy(update={"gateway": Gateway(port=5005)})
    taken = request.model_copy(update={"inventory": inventory})
    with pytest.raises(ControlError, match="tiny has port 5005 of this"):
        ray_watchdog.begin_up(taken)
    assert (started, paths.role.exists()) == ([], False)
    other = ApplyRequest(spec=deployment(), plan=plan(engine="custom", port=5006), who="me")
    ray_watchdog.begin_up(taken.model_copy(update={"apply": (other,)}))
    assert started == [paths.label]


def test_the_port_that_an_endpoint_at_any_port_keeps_is_refused_likewise(paths, started):
    kept = choose_address(paths, "127.0.0.1", Gateway(port=0)).gateway_port
    with contextlib.closing(Store(paths.database)) as store:
        store.deployments.put(deployment(), plan(engine="custom", port=kept), "me")
    request = up(paths)
    inventory = request.inventory.model_copy(update={"gateway": Gateway(port=0)})
    with pytest.raises(ControlError, match=f"tiny has port {kept} of this"):
        ray_watchdog.begin_up(request.model_copy(update={"inventory": inventory}))
    assert started == []


@pytest.mark.parametrize("begin", ["up", "join"])
def test_a_start_during_a_stop_waits_for_its_end(paths, started, begin):
    """`down` ends every process of the fleet on the node, and so the watchdog of an `up` that did not wait."""
    paths.ended_role.write_text("{}")
    call = (
        (lambda: ray_watchdog.begin_up(up(paths)))
        if begin == "up"
        else (lambda: ray_watchdog.begin_join(joining(paths)))
    )
    starting = threading.Thread(target=call)
    with node_lifecycle.alone(paths):  # as `down` holds it
        starting.start()
        starting.join(0.3)
        assert starting.is_alive()
        assert started == []
    starting.join(5)
    assert started == [paths.label]


def test_a_start_after_a_stop_that_was_interrupted_waits_for_nobody(paths, started):
    paths.ended_role.write_text("{}")
    ray_watchdog.begin_up(up(paths))
    assert started == [paths.label]
    with node_lifecycle.alone(paths):  # as the watchdog holds it while it starts Ray
        ray_watchdog.begin_up(up(paths))
    assert started == [paths.label, "kept"]


def test_a_second_up_leaves_the_start_that_is_under_way_to_go_on(paths, started):
    """systemd ended the watchdog of the first one, and Ray began again."""
    spec, planned = deployment(), plan()
    assert ray_watchdog.begin_up(up(paths, who="ann@desk"))["begun_by"] == ""
    second = up(paths, who="bob@sofa", apply=(ApplyRequest(spec=spec, plan=planned, who="bob@sofa"),))
    assert ray_watchdog.begin_up(second)["begun_by"] == "ann@desk"
    assert read_role(paths).up.who == "ann@desk"
    assert started == [paths.label, "kept"]


@pytest.mark.parametrize("case", ["ended", "another inventory", "hung"])
def test_a_second_up_starts_anew_if_nothing_of_it_is_under_way(paths, started, case):
    ray_watchdog.begin_up(up(paths, who="ann@desk"))
    second = up(paths, who="bob@sofa")
    match case:
        case "ended":
            paths.outcome.write_text('{"error": {}}')
        case "another inventory":
            changed = second.inventory.model_copy(update={"lan_rendezvous": True})
            second = second.model_copy(update={"inventory": changed})
        case _:
            long_ago = time.time() - ray_watchdog.START_S - 1
            os.utime(paths.role, (long_ago, long_ago))
    assert ray_watchdog.begin_up(second)["begun_by"] == ""
    assert read_role(paths).up.who == "bob@sofa"
    assert not paths.outcome.exists()
    assert started == [paths.label] * 2


@pytest.mark.parametrize("down", [False, True])
def test_a_watchdog_that_is_started_again_while_down_begins_leaves_no_service(paths, monkeypatch, down):
    """`down` had removed the service, and the restart put it back: it failed every 5 s, and after each reboot."""
    services = []

    def start(label, *_, **__):
        if down:
            paths.role.replace(paths.ended_role)
        services.append(label)
        return "systemd"

    monkeypatch.setattr(service_manager, "start", start)
    monkeypatch.setattr(service_manager, "stop", services.remove)
    write_role(paths, Role(python="python", join=joining(paths)))
    ray_watchdog.resume(paths)
    assert services == ([] if down else [paths.label])


async def test_programs_that_remove_old_files_leave_the_run_directory_alone(paths, monkeypatch):
    """systemd-tmpfiles skips a directory on which it gets no exclusive lock."""
    kept = asyncio.Event()

    async def keep(*_, **__):
        kept.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(ray_watchdog, "_keep", keep)
    watchdog = asyncio.create_task(ray_watchdog.keep(paths))
    await kept.wait()
    assert not is_cleaned(paths.run.parent)
    watchdog.cancel()
    await asyncio.gather(watchdog, return_exceptions=True)


@pytest.fixture
def full_disk(monkeypatch):
    def write_atomically(path, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(ray_watchdog, "write_atomically", write_atomically)


@pytest.mark.usefixtures("started", "full_disk")
async def test_down_stops_a_node_whose_disk_is_full(paths, monkeypatch):
    """It ended before it had stopped anything, as often as it was repeated."""
    paths.create()
    ended = []

    async def down(paths):
        ended.append(paths.label)

    monkeypatch.setattr(node_lifecycle, "down", down)
    await ray_watchdog.take_down(paths)
    assert ended == [paths.label]


@pytest.mark.usefixtures("full_disk")
async def test_a_disk_that_is_full_when_ray_starts_again_does_not_end_the_watchdog(paths, monkeypatch):
    paths.create()
    write_role(paths, Role(python="python", join=joining(paths)))
    starts = []

    class Ended:
        def poll(self):
            return 1

    async def join(*_):
        starts.append("Ray")
        if len(starts) == 3:
            raise asyncio.CancelledError
        return Ended()

    monkeypatch.setattr(node_lifecycle, "join", join)
    monkeypatch.setattr(ray_watchdog, "pause_s", lambda *_: 0.001)
    with pytest.raises(asyncio.CancelledError):
        await ray_watchdog.keep(paths)
    assert len(starts) == 3

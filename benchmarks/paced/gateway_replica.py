"""The fleet's own gateway before given engines: its replica on a Ray Serve of its own, with a fixed table.

    python -m paced.gateway_replica ENGINE_URL PORT SHA256_OF_KEY PID_FILE

Writes the process id of the replica once it listens, and runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

from sparkfleet.controlplane.ray.ray_process import ray_environment
from sparkfleet.runtime.files.fleet_paths import FleetPaths

APP = "fake--g1-0"
NAMESPACE = "bench"
BODY_BYTES = 64 << 20
CONCURRENCY = 4096
START_S = 60.0


class Engine:
    """The replica of a group, as far as the gateway reads it.

    Args:
        url: the engine's address.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def record_replica_metadata(self) -> dict[str, str]:
        """Read by Serve, and sent to those that call it."""
        return {"url": self._url, "group": "fake/g1/0"}


class FixedController:
    """The gateway's view of a controller whose table never changes."""

    def __init__(self, version: int, table: str) -> None:
        self._version = version
        self._table = table

    async def table(self, known: int, replica: str) -> str:
        """The table; as the controller, after 10 s if the gateway has it."""
        if known == self._version:
            await asyncio.sleep(10)
        return self._table

    async def register_gateway(self, report: str) -> bool:
        """Takes its report, as if its usage were stored."""
        return True


def start(engine: str, port: int, key_sha256: str) -> None:
    """Starts the engine's application, the controller and the gateway. Returns once Serve runs them."""
    import ray
    from ray import serve

    from sparkfleet.gateway.listening import GatewayListening
    from sparkfleet.gateway.ray_serve import GatewayConfig, gateway_app
    from sparkfleet.gateway.routing_table import GroupEntry, KeyEntry, ModelEntry, RoutingTable

    group = serve.deployment(name="group", ray_actor_options={"num_cpus": 0})(Engine)
    serve.run(group.bind(engine), name=APP, route_prefix=None)
    groups = (GroupEntry(app=APP, concurrency=CONCURRENCY),)
    entry = ModelEntry(name="fake", groups=groups, deployment="group", state="ready")
    key = KeyEntry(id="key-bench", name="bench", sha256=key_sha256)
    table = RoutingTable(version=1, models={"fake": entry}, keys=(key,))
    options = {"name": "controller", "num_cpus": 0, "lifetime": "detached", "namespace": NAMESPACE}
    ray.remote(FixedController).options(**options).remote(table.version, table.model_dump_json())
    listening = GatewayListening(host="127.0.0.1", port=port, max_body_bytes=BODY_BYTES)
    config = GatewayConfig(listening=listening, controller="controller", namespace=NAMESPACE)
    serve.run(gateway_app(config, {}), name="gateway", route_prefix=None)


@contextmanager
def own_ray() -> Iterator[FleetPaths]:
    """Starts Ray and Serve in the environment that a fleet gives them, and ends them. Ray reads it at its import."""
    with tempfile.TemporaryDirectory(prefix="sparkfleet-bench-") as directory:
        paths = FleetPaths(Path(directory))
        paths.create()
        environment = ray_environment(paths)
        os.environ.clear()
        os.environ.update(environment)
        import ray
        from ray import serve
        from ray.serve.config import ProxyLocation

        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, namespace=NAMESPACE,
            object_store_memory=80_000_000, _temp_dir=str(paths.run / "ray"),
        )  # fmt: skip
        try:
            serve.start(proxy_location=ProxyLocation.Disabled)
            yield paths
        finally:
            serve.shutdown()
            ray.shutdown()
            rmtree(paths.run, ignore_errors=True)


def process_titled(title: str, label: str) -> int:
    """The process of a fleet with a title that Ray gives it. Raises TimeoutError if there is none.

    Args:
        title: its beginning.
        label: of the fleet, in the process's environment.
    """
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                has = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue  # it has ended
            if has.startswith(title.encode()) and label.encode() in environment:
                return int(entry.name)
        time.sleep(0.1)
    raise TimeoutError(f"no process {title}")


def main() -> int:
    engine, port, key_sha256, note = sys.argv[1:]
    with own_ray() as paths:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # Ray has set its own
        start(engine, int(port), key_sha256)
        Path(note).write_text(f"{process_titled('ray::ServeReplica:gateway', paths.label)}\n")
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())

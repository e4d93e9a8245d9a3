"""Ray on the nodes of a fleet: its command lines, environment and ports.

The reasons for each setting are in docs/decisions.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from sparkfleet.controlplane.ray.ray_tls import tls_environment
from sparkfleet.controlplane.state.head_address import HeadAddress, gateway_tls, read_address, write_address
from sparkfleet.gateway.listening import GatewayEntry
from sparkfleet.runtime.files.fleet_paths import STATE_VARIABLE, FleetPaths
from sparkfleet.runtime.files.state_probe import RAY_LABEL
from sparkfleet.runtime.ports import free_port
from sparkfleet.specs.inventory import Gateway

LABEL = RAY_LABEL
"""Variable with the fleet's label in every process of Ray, by which `down` finds them."""

NODE_LABEL = "sparkfleet.node"
"""Ray's label with the name of a raylet's node in the inventory; placement uses it."""

RAY = (sys.executable, "-P", "-m", "sparkfleet.controlplane.ray.ray_start")
"""Ray's command line without Ray Client, by this interpreter: its script would use the one that it was installed with."""

OBJECT_STORE_BYTES = 80_000_000
"""Size of the object store, bytes. Ray's minimum is 75 MiB, its default 30 % of unified memory; only copies of the store
pass through it."""

GRPC_BYTES = 32 << 20
"""Largest message between Ray's processes, bytes; a plan with its ladder has some hundred kilobytes."""


def choose_address(
    paths: FleetPaths,
    host: str,
    gateway: Gateway,
    name: str = "127.0.0.1",
    entries: tuple[GatewayEntry, ...] = (),
    *,
    term: int = 0,
    ray_port: int = 0,
) -> HeadAddress:
    """The addresses of the last start, or new ones with free ports; stores them.

    Args:
        host: the head's address towards the other nodes, on which Ray listens.
        gateway: address of the endpoint; port 0: any free one.
        name: the head's name for clients.
        entries: of the endpoint, on other nodes.
        term: of the head, unless it has a higher one.
        ray_port: port for Ray if there is no last start; 0: a free one.
    """
    before = read_address(paths)
    ray_port = int(before.ray.rpartition(":")[2]) if before else ray_port or free_port(host)
    address = HeadAddress(
        ray=f"{host}:{ray_port}",
        api=before.api if before else f"http://127.0.0.1:{free_port('127.0.0.1')}",
        gateway_host=gateway.host,
        gateway_port=gateway.port or (before.gateway_port if before else free_port(gateway.host)),
        name=name,
        max_body_bytes=gateway.max_body_bytes,
        origins=gateway.origins,
        tls=gateway_tls(gateway, name, entries=entries),
        entries=entries,
        term=max(term, before.term if before else 0),
    )
    write_address(paths, address)
    return address


def ray_argv(paths: FleetPaths, address: HeadAddress, node: str) -> tuple[str, ...]:
    """`ray start` for the head. It stays in the foreground; its caller detaches it."""
    host, _, port = address.ray.rpartition(":")
    return (
        *_ray_start(paths, host, node),
        "--head",
        f"--port={port}",
        "--include-dashboard=false",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={free_port('127.0.0.1')}",
    )


def ray_worker_argv(paths: FleetPaths, head: str, host: str, node: str) -> tuple[str, ...]:
    """`ray start` for any other node.

    Args:
        head: address of the head's Ray, `address:port`.
        host: this node's address towards the other nodes.
    """
    return (*_ray_start(paths, host, node), f"--address={head}")


def _ray_start(paths: FleetPaths, host: str, node: str) -> tuple[str, ...]:
    return (
        *RAY,
        "start",
        "--block",
        f"--node-ip-address={host}",
        "--num-cpus=2",  # actors take none; Ray keeps this many workers warm
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={paths.run / 'ray'}",
        f"--labels={NODE_LABEL}={node}",
        "--disable-usage-stats",
        "--include-log-monitor=false",
    )


def ray_environment(paths: FleetPaths, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of `ray start` and of every process that connects to it."""
    return {
        **{name: value for name, value in base.items() if not name.startswith("RAY_")},
        LABEL: paths.label,
        STATE_VARIABLE: str(paths.root),
        "SPT_NOENV": "1",  # else the process titles that Ray sets overwrite the label
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(paths.ray_token),
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(paths.gcs),
        "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
        "RAY_health_check_period_ms": "1000",
        # A restarted head has a new cluster (docs/decisions.md, 12). A raylet of the old one notices that at its next health
        # check, by default once a minute, and ends; its watchdog starts it again.
        "RAY_raylet_liveness_self_check_interval_ms": "3000",
        # Ray gives workers niceness 15, and their children inherit it: gateway and engines would yield to everything else
        # that runs on the Spark.
        "RAY_worker_niceness": "0",
        # On unified memory Ray's monitor counts the engine's weights and kills it while it loads.
        "RAY_memory_monitor_refresh_ms": "0",
        # Ray compares patch releases, too, and a node with another one never joins: 3.12.3 beside 3.12.12. What it sends
        # between nodes, bytecode included, is the same for all of a minor version.
        "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray would serve the metrics of its autoscaler and dashboard on every interface. There is no off switch but a port
        # that cannot be bound: Ray logs that once and goes on (Ray 2.60; docs/decisions.md).
        "AUTOSCALER_METRIC_PORT": "-1",
        "DASHBOARD_METRIC_PORT": "-1",
        # Nor has the page of each node's own metrics, on a random port of every interface, which nobody reads here.
        "RAY_enable_metrics_collection": "0",
        # Ray reads a whole message before it checks the token, by default up to 512 MB. Ours have kilobytes.
        "RAY_max_grpc_message_size": str(GRPC_BYTES),
        "RAY_agent_max_grpc_message_size": str(GRPC_BYTES),
        "RAY_SERVE_LOG_TO_STDERR": "0",
        # The gateway is asynchronous throughout: no thread hop per chunk.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
        "PYTHONUNBUFFERED": "1",
        **tls_environment(paths),
    }


def ray_init_arguments(address: HeadAddress) -> dict[str, object]:
    """Arguments of `ray.init` for a process that joins the head."""
    return {
        "address": address.ray,
        "_node_ip_address": address.ray.rpartition(":")[0],
        "logging_level": "ERROR",
        "log_to_driver": False,
        "configure_logging": False,
    }

"""Flags and variables that a deployment may not give an engine, because sparkfleet does: scripts that people copy have them.

Such a flag would be found out after a quarter of an hour: the engine listens where nobody asks it, or on every address, or
waits for ranks that meet elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Wrong(NamedTuple):
    """Why arguments cannot be taken, and what to write instead."""

    reason: str
    remedy: str


_ADDRESS = (
    "where an engine listens is sparkfleet's: one address of its node, behind the gateway",
    "leave {} out; where clients ask is `gateway` in the inventory",
)
_NAME = (
    "what is served, and under which name, are fields of the deployment",
    "leave {} out; say `name` and `model` (`ORG/NAME@REVISION` where it is not the newest)",
)
_SECRET = (
    "the engine answers the gateway alone, with a token of its own that no list of processes shows",
    "leave {} out; `sparkfleet keys` makes keys for clients",
)
_TLS = (
    "the gateway asks engines without TLS, over the fleet's own links",
    "leave {} out, and end TLS before the gateway",
)
_RANKS = (
    "where the ranks of a group meet is sparkfleet's: on the rails of their link",
    "leave {} out; `parallel` says how many ranks there are",
)
_EACH_RANK = (
    "ranks are held to the rails of their own link, whose names and addresses differ from node to node",
    "leave {} out",
)
_REPLICAS = ("a Spark has one GPU, and copies of a model are not planned inside an engine", "say `replicas`")
_FIGURES = (
    "an engine's figures are how sparkfleet sees that it lives: without them a busy one looks hung",
    "leave {} out",
)

OURS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("--host", "--port", "--uds"), _ADDRESS),
    **dict.fromkeys(("--served-model-name", "--model", "--model-path", "--revision"), _NAME),
    **dict.fromkeys(("--api-key", "--admin-api-key"), _SECRET),
    **dict.fromkeys(("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"), _TLS),
    **dict.fromkeys(
        (
            *("--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--headless"),
            *("--distributed-executor-backend", "--dist-init-addr", "--nccl-init-addr", "--nccl-port"),
        ),
        _RANKS,
    ),
    **dict.fromkeys(("--data-parallel-size", "-dp", "--dp-size", "--dp"), _REPLICAS),
    "--disable-log-stats": _FIGURES,
}
"""Why each is refused, and what to write instead."""

VARIABLES: Mapping[str, tuple[str, str]] = {
    "VLLM_API_KEY": _SECRET,
    **dict.fromkeys(("VLLM_HOST_IP", "SGLANG_HOST_IP", "HOST_IP", "MASTER_ADDR", "MASTER_PORT"), _EACH_RANK),
    **dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), _EACH_RANK),
    **dict.fromkeys(("NCCL_IB_HCA", "UCX_NET_DEVICES"), _EACH_RANK),
}
"""The same of environment variables. What is alike on every rank (NCCL_DEBUG, NCCL_IB_DISABLE) is a deployment's to set."""


def given(flags: Mapping[str, str], env: Mapping[str, str]) -> Iterator[Wrong]:
    """What a deployment gives and sparkfleet gives itself; flags that ask for one copy ask for nothing. No value is told."""
    for name in env:
        if name in VARIABLES:
            reason, remedy = VARIABLES[name]
            yield Wrong(f"{name} is not the deployment's to say: {reason}", remedy.format(name))
    for flag in flags:
        if flag in OURS and not (OURS[flag] is _REPLICAS and flags[flag] == "1"):
            reason, remedy = OURS[flag]
            yield Wrong(f"{flag} is not the deployment's to say: {reason}", remedy.format(flag))

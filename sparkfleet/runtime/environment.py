"""Environment of a rank, and the labels by which it is found again. Stdlib only."""

from __future__ import annotations

from collections.abc import Mapping

RANK_LABEL = "SPARKFLEET_RANK"
"""Carried by everything that a rank starts; the value is `str(RankId)`."""
FLEET_LABEL = "SPARKFLEET_FLEET"
"""Carried beside it; the value is the fleet's state id, so that two fleets on one node never meet."""

PASSED = ("SPT_NOENV",)
"""Set for every rank; a container is given them by name."""

_KEPT = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR"})
_TOOLS = frozenset(
    {"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"}
)
"""Where a container tool finds its daemon, its settings and its store."""
_KEPT_PREFIXES = ("LC_", "XDG_")


def steers_tools(name: str) -> bool:
    """True if a variable steers programs of the node itself.

    A container's value for it must not reach the tool that runs the container: it is given as an argument.
    """
    return name in _KEPT | _TOOLS or name.startswith((*_KEPT_PREFIXES, "LD_", "DOCKER_", "CONTAINERS_"))


def clean_environment(source: Mapping[str, str]) -> dict[str, str]:
    """The part of `source` that a rank may inherit: no `RAY_*`, no `CUDA_*`, no `PYTHON*`, no tokens."""
    kept = {k: v for k, v in source.items() if k in _KEPT | _TOOLS or k.startswith(_KEPT_PREFIXES)}
    # vLLM and SGLang name their workers with setproctitle, which overwrites /proc/<pid>/environ, and with it the
    # labels, unless it is told not to (observed with setproctitle 1.3.8; the variable is in its README).
    return {**kept, **dict.fromkeys(PASSED, "1")}


def labels(fleet: str, rank: str) -> dict[str, str]:
    """The two labels of one rank."""
    return {FLEET_LABEL: fleet, RANK_LABEL: rank}

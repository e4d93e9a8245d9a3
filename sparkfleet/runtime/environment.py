"""Environment of a rank, and the labels that identify its processes. Stdlib only."""

from __future__ import annotations

from collections.abc import Mapping

RANK_LABEL = "SPARKFLEET_RANK"
"""Variable in every process that a rank starts; its value is `str(RankId)`."""
FLEET_LABEL = "SPARKFLEET_FLEET"
"""Variable beside it; its value is the fleet's state id, so that two fleets on one node never interfere."""
RUN_LABEL = "SPARKFLEET_RUN"
"""The third one; its value is the start of the rank's present run. Processes of earlier releases have none."""
CONTAINER_RUN_LABEL = "sparkfleet.run"
"""The same as a label of its container, beside those of `engines.container`."""

PASSED = ("SPT_NOENV",)
"""Set for every rank; a container gets them by name."""

_KEPT = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR"})
_TOOLS = frozenset(
    {"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"}
)
"""Variables of a container tool for its daemon, its settings and its store."""
_KEPT_PREFIXES = ("LC_", "XDG_")


def steers_tools(name: str) -> bool:
    """True if a variable changes how programs of the node itself run.

    A container's value for it must not reach the tool that runs the container: it is passed as an argument.
    """
    return name in _KEPT | _TOOLS or name.startswith((*_KEPT_PREFIXES, "LD_", "DOCKER_", "CONTAINERS_"))


def clean_environment(source: Mapping[str, str]) -> dict[str, str]:
    """The part of `source` that a rank may inherit: no `RAY_*`, no `CUDA_*`, no `PYTHON*`, no tokens."""
    kept = {k: v for k, v in source.items() if k in _KEPT | _TOOLS or k.startswith(_KEPT_PREFIXES)}
    # vLLM and SGLang name their workers with setproctitle, which overwrites /proc/<pid>/environ and the labels in it
    # unless this variable is set (observed with setproctitle 1.3.8; the variable is in its README).
    return {**kept, **dict.fromkeys(PASSED, "1")}


def labels(fleet: str, rank: str) -> dict[str, str]:
    """The two labels of one rank, in all of its runs."""
    return {FLEET_LABEL: fleet, RANK_LABEL: rank}


def run_label(started_at: float) -> dict[str, str]:
    """The label of one run of a rank. `started_at`: seconds of the node's monotonic clock."""
    return {RUN_LABEL: repr(started_at)}


def run_start(value: str | None) -> float | None:
    """The start of a run from the value of its label; None if it has none that can be read."""
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None

"""Files of vLLM's ranks: the guard, the plugins, and the script that puts them on Python's path. Pure."""

from __future__ import annotations

from importlib.resources import files

from sparkfleet.engines.base import LaunchFile, RankContext
from sparkfleet.engines.guarded import GUARD, START
from sparkfleet.engines.nccl_env import Pairs, merged
from sparkfleet.engines.vllm_plugins.bounded_waits import SPIN
from sparkfleet.engines.vllm_plugins.cpu_build import cpu_files
from sparkfleet.planner.types.plan import Candidate

_PLUGIN = "sparkfleet_waits"
_HOME = f"{_PLUGIN}-1.dist-info"
WAITS = (
    LaunchFile(
        name=f"{_PLUGIN}.py",
        text=files("sparkfleet.engines.vllm_plugins")
        .joinpath("bounded_waits.py")
        .read_text(encoding="utf-8"),
        about="sparkfleet/engines/vllm_plugins/bounded_waits.py: vLLM's processes sleep between steps, and do not spin",
    ),
    LaunchFile(
        name=f"{_HOME}/METADATA",
        text=f"Metadata-Version: 2.1\nName: {_PLUGIN}\nVersion: 1\n",
        about="its name and version",
    ),
    LaunchFile(
        name=f"{_HOME}/entry_points.txt",
        text=f"[vllm.general_plugins]\n{_PLUGIN} = {_PLUGIN}:register\n",
        about="by which vLLM finds it",
    ),
)
"""The bounds on vLLM's waits, as a plugin that vLLM loads in each of its processes."""


def files_of(candidate: Candidate, context: RankContext) -> tuple[LaunchFile, ...]:
    """The files of a rank. Waits are bounded if the variable for it is set, by a rule or by the deployment."""
    found: tuple[LaunchFile, ...] = (GUARD,) if context.rank == 0 else ()
    if candidate.device == "cpu" and candidate.shape.ranks > 1:
        found += cpu_files(candidate.engine_version, experts=candidate.shape.ep > 1)
    if SPIN in dict(candidate.env):
        found += WAITS
    return (*found, START) if found and candidate.runtime == "container" else found


def with_path(env: Pairs, candidate: Candidate, context: RankContext) -> Pairs:
    """Puts the rank's own files on Python's path, before what the deployment sets. In a container `start.sh` does that."""
    if candidate.runtime == "container" or not files_of(candidate, context):
        return env
    path = ":".join(word for word in (context.files_dir, dict(env).get("PYTHONPATH")) if word)
    return merged(env, (("PYTHONPATH", path),))

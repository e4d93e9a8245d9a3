"""Helpers of tests with real containers, or with a fake container tool."""

import json
import resource

from sparkfleet.runtime.base import RankSpec, RankStatus
from sparkfleet.runtime.processes import process


def limits() -> str:
    """Limits of this process: a root without CAP_SYS_RESOURCE cannot have the higher ones of podman's defaults."""
    known = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    hard = {name: min(resource.getrlimit(number)[1] % (1 << 63), 32_768) for name, number in known.items()}
    return json.dumps([f"{name}={limit}:{limit}" for name, limit in hard.items()])


def name_of(spec: RankSpec) -> str:
    """Name of a rank's container."""
    return spec.argv[spec.argv.index("--name") + 1]


def supervisor_of(status: RankStatus) -> int:
    """Pid of a rank's supervisor."""
    found = process(status.pid)
    assert found
    return found.parent

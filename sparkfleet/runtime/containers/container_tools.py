"""Selects this node's container tool: docker or podman, by which one is installed, answers, and has the image."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from sparkfleet.errors import Cause, NodeError
from sparkfleet.hostfacts.container import Tool
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.local import execute
from sparkfleet.runtime.environment import clean_environment
from sparkfleet.specs.fields import quote

TOOLS: tuple[Tool, ...] = ("docker", "podman")
NO_IMAGE = re.compile(r"image not known|no such (?:image|object)|unable to find image", re.IGNORECASE)
"""Answer of a tool that works and does not have an image."""
ANSWER_S = 15.0
"""Time limit of a container tool's answer: it shares the node with engines that load."""


async def tool_for(image: str) -> Tool:
    """The tool that has an image on this node; the first one if several have it.

    Raises:
        NodeError: none has it, none is installed, or one that may have it does not answer.
    """
    present = [tool for tool in TOOLS if shutil.which(tool)]
    failed = []
    for tool in present:
        answer = await ask((tool, "image", "inspect", "--format", "{{.Id}}", image))
        if answer is None:
            failed.append(f"{tool} did not answer in {ANSWER_S:.0f} s if the image {image} is on this node")
        elif answer.exit_code == 0:
            return tool
        elif not NO_IMAGE.search(answer.stderr):
            says = quote(answer.stderr.strip().rpartition("\n")[2])
            failed.append(f"{tool} cannot look for the image {image} on this node: {says}")
    if not present:
        raise NodeError(
            f"neither {' nor '.join(TOOLS)} is on this node",
            do="sudo apt-get install podman",
            because=Cause.MISSING,
        )
    if failed:
        raise NodeError(
            "; ".join(failed),
            means="Its daemon is not running or hangs, this user may not use it, or the node is too busy.",
            do=_older_groups()
            if any(one.startswith("docker ") and "permission denied" in one for one in failed)
            else f"{failed[0].partition(' ')[0]} image inspect {image}",
            because=Cause.TOOL,
        )
    raise NodeError(
        f"the image {image} is not on this node",
        means=f"Checked: {', '.join(present)}.",
        do=f"{present[0]} pull {image}",
        because=Cause.MISSING,
    )


def _older_groups() -> str:
    """The remedy if docker refuses this process: systemd's manager of a user keeps the groups that it was started with, also
    while the user logs out and in again."""
    return (
        "`sudo usermod -aG docker $USER` on the node. If docker works in a shell there, systemd's manager of this user is"
        f" older than that: reboot the node, or `sudo systemctl restart user@{os.getuid()}.service`, which ends all"
        " that it runs."
    )


async def ask(argv: Sequence[str], grace_s: float = 0) -> Completed | None:
    """Answer of a tool; None if it cannot be started, or exceeds `ANSWER_S` plus `grace_s`."""
    try:
        return await execute(argv, env=clean_environment(os.environ), timeout_s=ANSWER_S + grace_s)
    except NodeError:
        return None


def is_used(tool: Tool) -> bool:
    """True if it may have containers. Only then it is queried: a query to a podman that was never used creates a store and
    leaves a process behind."""
    if shutil.which(tool) is None:
        return False
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return tool == "docker" or os.geteuid() == 0 or (Path(data) / "containers").exists()

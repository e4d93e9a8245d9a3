"""Containers: a tool that this user may use and that gives containers the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.doctor.check import Check, node_check
from sparkfleet.doctor.findings import CheckFault, error, warning
from sparkfleet.doctor.snapshot import NodeSnapshot
from sparkfleet.hostfacts.container import ContainerTool, refused

TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit"


@node_check("container-tool", "a container tool is installed and permitted")
def container_tool(node: NodeSnapshot, container_tools: tuple[ContainerTool, ...]) -> Iterator[CheckFault]:
    """One usable tool is enough."""
    if any(tool.usable for tool in container_tools):
        return
    finding = warning if node.engines_of_its_own or not node.gpus else error
    if not container_tools:
        yield finding(
            f"{node.name} has no container runtime: neither docker nor podman is installed",
            means="Engines that are container images cannot run there"
            + ("; engines with an environment in inventory.yaml can." if node.engines_of_its_own else "."),
            do=(
                "sudo apt install docker-ce nvidia-container-toolkit   # DGX OS has both; or: sudo apt install podman",
                "sudo usermod -aG docker $USER   # then log in again",
            ),
        )
        return
    for tool in container_tools:
        if refused(tool):
            yield finding(
                f"{node.name}: this user may not use {tool.tool}",
                means="Engines that are container images cannot be started.",
                do=("sudo usermod -aG docker $USER", "exit   # then log in again: groups are read at login"),
                said=tool.why_not,
            )
        else:
            yield finding(
                f"{node.name}: {tool.tool} does not answer: {tool.why_not}",
                means="Engines that are container images cannot be started.",
                do="sudo systemctl restart docker; journalctl -u docker -n 50"
                if tool.tool == "docker"
                else "podman info   # as this user: podman has no daemon that could be restarted",
            )


@node_check("container-gpu", "containers can use the GPU", source=TOOLKIT)
def container_gpu(node: NodeSnapshot, container_tools: tuple[ContainerTool, ...]) -> Iterator[CheckFault]:
    """Requires the NVIDIA runtime, or a device description (CDI)."""
    usable = [tool for tool in container_tools if tool.usable]
    if not usable or not node.gpus:
        return
    if not node.cdi and not any(tool.nvidia_runtime for tool in usable):
        yield error(
            f"{node.name}: {' and '.join(tool.tool for tool in usable)} cannot pass the GPU to a container",
            means="The NVIDIA runtime is not registered, and there is no CDI description in /etc/cdi.",
            do=(
                "sudo apt install nvidia-container-toolkit",
                "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
                "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml   # for podman",
            ),
        )


CHECKS: tuple[Check, ...] = (container_tool, container_gpu)

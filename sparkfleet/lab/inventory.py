"""The `inventory.yaml` of a lab."""

from __future__ import annotations

import json

from sparkfleet.lab.layout import Cable
from sparkfleet.lab.machine import fingerprint
from sparkfleet.lab.state import USER, State


def inventory(state: State) -> str:
    """The YAML text: nodes with their current host keys, and every cable with its rails."""
    layout = state.layout
    lines = [f"fleet: {layout.name}", f"head: {layout.nodes[state.head - 1].name}", "nodes:"]
    for node in layout.nodes:
        key = f"host_key: {json.dumps(fingerprint(state, node.name))}"
        identity = f"identity_file: {json.dumps(str(state.path('key')))}"
        lines += [
            f"  {node.name}:",
            f"    address: {node.address}",
            f"    user: {USER}",
            f"    {key}",
            f"    {identity}",
        ]
    lines += ["links:" if layout.cables else "links: []"]
    for cable in layout.cables:
        lines += _link(cable)
    return "\n".join(lines) + "\n"


def _link(cable: Cable) -> list[str]:
    lines = [f"  - nodes: [{', '.join(cable.nodes)}]"]
    lines += [f"    switch: {cable.switch}"] if cable.switch else []
    lines += ["    rails:"]
    for rail in cable.rails:
        for index, end in enumerate(rail.ends):
            mark = "      - - " if index == 0 else "        - "
            lines.append(f"{mark}{{netdev: {end.netdev}, rdma: {end.rdma}, address: {end.address}}}")
    return lines

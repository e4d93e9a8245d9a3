"""Writes the answers of a bundle into the nodes of a lab, and gives its cables and settings the state that they show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from sparkfleet.lab import faults, network
from sparkfleet.lab.inside.replay import MISSING, file_of
from sparkfleet.lab.refresh import refresh_sys
from sparkfleet.lab.replay.plan import NodeReplay
from sparkfleet.lab.state import State, replace_file, save


def write_answers(state: State, nodes: Mapping[str, NodeReplay]) -> None:
    """Writes a file per command, named by its hash: no name in it is of the bundle."""
    for name, node in nodes.items():
        place = state.node_path(name, "state", "replay")
        place.mkdir()
        replace_file(place / MISSING, json.dumps(node.missing))
        # Of equal commands the first answer counts, as the reader of a bundle sees it.
        for answer in reversed(node.answers):
            found = {
                "exit_code": answer.exit_code,
                "stdout": answer.stdout,
                "stderr": answer.stderr
                or (f"{answer.argv[0]}: command not found\n" if answer.missing else ""),
                "late": answer.late,
            }
            replace_file(place / file_of(answer.argv), json.dumps(found))


def show_in_nodes(state: State, nodes: Mapping[str, NodeReplay]) -> State:
    """Pulls the rails without a carrier, and sets MTUs and knobs, of a lab that has booted."""
    layout = state.layout
    rails = [rail for cable in layout.cables for rail in cable.rails]
    pulled = {
        network.rail_key(rail)
        for rail in rails
        if any(end.node in nodes and end.netdev in nodes[end.node].dark for end in rail.ends)
    }
    network.set_carriers(layout, state.powered, pulled)
    state = save(replace(state, pulled=tuple(sorted(pulled))))
    for rail in rails:
        for end in rail.ends:
            if size := nodes[end.node].mtu.get(end.netdev) if end.node in nodes else None:
                network.set_mtu(layout, [end], size)
    for name, node in nodes.items():
        if node.knobs:
            state = faults.turn(state, name, node.knobs)
    refresh_sys(state)
    return state

"""`scripts/lab`: its verbs and their output."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparkfleet.lab import faults, lifecycle, power, state
from sparkfleet.lab.errors import LabError
from sparkfleet.lab.inside.node_settings import KNOBS
from sparkfleet.lab.inventory import inventory
from sparkfleet.lab.layout import Topology
from sparkfleet.lab.machine import fingerprint
from sparkfleet.lab.replay.bundle import read_bundle
from sparkfleet.lab.replay.plan import ReplayPlan

LabVerb = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str]) -> int:
    """Runs one verb; an error is printed without a traceback, with exit code 1."""
    arguments = _parser().parse_args(argv)
    try:
        verb: LabVerb = arguments.verb
        return verb(arguments)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/lab", description="Simulated DGX Sparks. See docs/lab.md.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--name", default="lab", help="name of the lab (default: lab)")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(name: str, call: LabVerb, text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, parents=[common], help=text, description=text)
        made.set_defaults(verb=call)
        return made

    _life_verbs(verb)
    _fault_verbs(verb)
    return parser


def _life_verbs(verb: Callable[[str, LabVerb, str], argparse.ArgumentParser]) -> None:
    up = verb("up", _up, "make a lab and boot its nodes")
    up.add_argument("--nodes", type=int, help="default: 2")
    chosen = [one for one in Topology if one is not Topology.CAPTURED]
    up.add_argument("--topology", type=Topology, choices=chosen, help="default: direct for two, else switch")
    up.add_argument(
        "--from",
        type=Path,
        dest="bundle",
        metavar="BUNDLE",
        help="replay the fleet of a file that `sparkfleet bundle` wrote",
    )
    up.add_argument("--dir", help="directory for its files; must not exist")
    up.add_argument(
        "--share", action="append", default=[], help="a path that nodes see, read-only; may be repeated"
    )
    up.add_argument(
        "--with", type=int, dest="owner", metavar="PID", help="take the lab down when this process ends"
    )
    verb("down", _down, "take a lab down and delete its files")
    status = verb("status", _status, "list the labs on this machine")
    status.add_argument("--json", action="store_true")
    verb("env", _env, "print addresses, key file and ssh configuration")
    verb("inventory", _inventory, "print the lab's inventory.yaml")
    run = verb("exec", _exec, "run a command in a node, without SSH: exec NODE -- CMD")
    run.add_argument("--root", action="store_true", help="as root, not as nvidia")
    run.add_argument("node")
    run.add_argument("command", nargs=argparse.REMAINDER)


def _fault_verbs(verb: Callable[[str, LabVerb, str], argparse.ArgumentParser]) -> None:
    for name, call, text in (
        ("cut", _cut, "pull a rail (LINK/RAIL) or a cable (LINK)"),
        ("mend", _mend, "undo cut, slow, mtu and subnet"),
        ("slow", _slow, "limit a rail's rate or add delay"),
        ("mtu", _mtu, "set the MTU of a rail"),
        ("subnet", _subnet, "move a rail into another subnet"),
    ):
        made = verb(name, call, text)
        made.add_argument("where", metavar="LINK[/RAIL]", help="such as spark1-spark2/0")
        if name == "slow":
            made.add_argument("--gbit", type=float, help="at most this rate, Gb/s")
            made.add_argument("--delay", type=float, help="added delay each way, ms")
        if name == "mtu":
            made.add_argument("size", type=int)
            made.add_argument("--node", help="at this node's end only")
        if name == "subnet":
            made.add_argument("network", help="such as 192.168.100.0/24")
    for name, act, text in (
        ("kill", lifecycle.kill, "cut a node's power"),
        ("boot", lifecycle.boot, "switch a node on"),
        ("reboot", lifecycle.reboot, "cut a node's power and switch it on again"),
        ("heal", faults.heal, "undo everything that was set on a node"),
    ):
        verb(name, _on_node(act), text).add_argument("node")
    knob = verb("set", _set, "make a node report other values: set NODE KEY=VALUE …")
    knob.add_argument("node")
    knob.add_argument("changes", nargs="+", metavar="KEY[.DEVICE]=VALUE")
    verb("knobs", _knobs, "list the keys that `set` accepts")


def _up(arguments: argparse.Namespace) -> int:
    replay = _replay(arguments)
    made = lifecycle.up(
        arguments.name,
        arguments.nodes or 2,
        arguments.topology,
        directory=arguments.dir,
        shares=arguments.share,
        owner=arguments.owner,
        replay=replay,
    )
    print(f"The lab {made.name} is up: {', '.join(node.name for node in made.layout.nodes)}.")
    if replay:
        commands = ", ".join(f"{count} of {node}" for node, count in made.replays.items())
        print(f"Commands that print the outputs of {arguments.bundle}: {commands}.")
        for note in replay.notes():
            print(f"  {note}")
    print(f"  scripts/lab env --name {made.name}        addresses, key and ssh configuration")
    print(f"  scripts/lab inventory --name {made.name}  their inventory.yaml")
    return 0


def _replay(arguments: argparse.Namespace) -> ReplayPlan | None:
    """The fleet of the given bundle. Raises LabError."""
    if arguments.bundle is None:
        if arguments.nodes is not None and arguments.nodes < 1:
            raise LabError(f"A lab of {arguments.nodes} nodes cannot be made.", do="Give --nodes from 1 on.")
        return None
    if arguments.nodes is not None or arguments.topology is not None:
        raise LabError(
            "--from decides the number of nodes and their cables.", do="Leave --nodes and --topology out."
        )
    return ReplayPlan(read_bundle(arguments.bundle))


def _down(arguments: argparse.Namespace) -> int:
    there = lifecycle.down(arguments.name)
    print(f"The lab {arguments.name} is down." if there else f"No lab is named {arguments.name}.")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    labs = [_described(found) for found in map(state.find, state.names()) if found]
    if arguments.json:
        print(json.dumps(labs, indent=2))
        return 0
    for lab in labs:
        print(
            f"{lab['name']}: {lab['topology']}, {lab['network']}"
            + ("" if lab["complete"] else ", incomplete")
        )
        for node in lab["nodes"]:
            set_here = "".join(f"  {key}={value}" for key, value in node["set"].items())
            power_word = "on" if node["on"] else "off"
            replays = f"  replays {node['replays']} commands" if node["replays"] else ""
            print(f"  {node['name']:<10}{node['address']:<14}{power_word}{replays}{set_here}")
        for link in lab["links"]:
            rails = ", ".join("pulled" if pulled else "plugged" for pulled in link["pulled"])
            print(f"  {link['name']:<24}{rails}")
    if not labs:
        print("No lab is up.")
    return 0


def _described(found: state.State) -> dict[str, Any]:
    layout = found.layout
    return {
        "name": found.name,
        "directory": found.directory,
        "topology": found.topology,
        "network": layout.network,
        "complete": found.complete,
        "nodes": [
            {
                "name": node.name,
                "address": node.address,
                "on": node.name in found.powered,
                "replays": found.replays.get(node.name, 0),
                "set": found.settings.get(node.name, {}),
            }
            for node in layout.nodes
        ],
        "links": [
            {
                "name": cable.name,
                "pulled": [f"{r.ends[0].node}/{r.ends[0].netdev}" in found.pulled for r in cable.rails],
                "rails": [[vars(end) for end in rail.ends] for rail in cable.rails],
            }
            for cable in layout.cables
        ],
    }


def _env(arguments: argparse.Namespace) -> int:
    found = state.load(arguments.name)
    print(
        f"# {found.name}: {found.topology}, {found.layout.network}; this host is {found.layout.operator_address}"
    )
    for node in found.layout.nodes:
        print(f"# {node.name}  {state.USER}@{node.address}  {fingerprint(found, node.name)}")
    print(f"LAB_KEY={found.path('key')}")
    print(f"LAB_SSH_CONFIG={found.path('ssh_config')}   # ssh -F $LAB_SSH_CONFIG spark1")
    return 0


def _inventory(arguments: argparse.Namespace) -> int:
    print(inventory(state.load(arguments.name)), end="")
    return 0


def _exec(arguments: argparse.Namespace) -> int:
    given = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    argv = power.command(state.load(arguments.name), arguments.node, given or ["bash"], root=arguments.root)
    sys.stdout.flush()
    os.execvp(argv[0], argv)  # noqa: S606


def _where(arguments: argparse.Namespace) -> tuple[str, int | None]:
    link, slash, rail = arguments.where.partition("/")
    if slash and not rail.isdecimal():
        raise LabError(f"{arguments.where!r} is not the name of a rail.", do="Write it as spark1-spark2/0.")
    return link, int(rail) if slash else None


def _cut(arguments: argparse.Namespace) -> int:
    faults.cut(arguments.name, *_where(arguments))
    return 0


def _mend(arguments: argparse.Namespace) -> int:
    faults.mend(arguments.name, *_where(arguments))
    return 0


def _slow(arguments: argparse.Namespace) -> int:
    faults.slow(arguments.name, *_where(arguments), gbit=arguments.gbit, delay_ms=arguments.delay)
    return 0


def _mtu(arguments: argparse.Namespace) -> int:
    faults.mtu(arguments.name, *_where(arguments), arguments.size, arguments.node)
    return 0


def _subnet(arguments: argparse.Namespace) -> int:
    link, rail = _where(arguments)
    if rail is None:
        raise LabError("`subnet` needs one rail, not a whole link.", do=f"Write it as {link}/1.")
    faults.subnet(arguments.name, link, rail, arguments.network)
    return 0


def _on_node(act: Callable[[str, str], object]) -> LabVerb:
    """A verb that changes one node of a lab."""

    def call(arguments: argparse.Namespace) -> int:
        act(arguments.name, arguments.node)
        return 0

    return call


def _set(arguments: argparse.Namespace) -> int:
    changes = dict(change.partition("=")[::2] for change in arguments.changes)
    faults.set_knobs(arguments.name, arguments.node, changes)
    return 0


def _knobs(_: argparse.Namespace) -> int:
    for name, knob in sorted(KNOBS.items()):
        per = f"  [.{'|.'.join(knob.per)}]" if knob.per else ""
        print(f"{name}={knob.healthy}\n    {knob.help}; accepts {knob.accepts}{per}")
    return 0

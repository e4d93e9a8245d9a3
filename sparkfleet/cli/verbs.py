"""Verbs of the command line, each loaded when it is used: `--version` and `--help` import none of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from typing import Any, NamedTuple


class VerbPanel(StrEnum):
    """Groups of verbs in `--help`, in its order."""

    SET_UP = "From boxes to a fleet"
    PLANNING = "Plans and their reasons"
    SERVING = "Serving models"
    WATCHING = "Seeing what runs"
    CLIENTS = "Clients and keys"
    NODES = "Running the fleet"
    OTHERS = "Help"


BRIEF = 66
"""Characters of a line in the list of verbs, on a terminal of 80 columns."""


class Verb(NamedTuple):
    """One verb: the attribute of a module of this package, a function or a Typer group, and its line of help."""

    module: str
    attribute: str
    help: str
    """First paragraph of the function's docstring, or the group's help; a test compares them."""
    panel: VerbPanel

    @property
    def brief(self) -> str:
        """Line in the list of verbs: the first sentence, of a long one the words before its details."""
        sentence = self.help.partition(". ")[0].removesuffix(".")
        return f"{sentence if len(sentence) < BRIEF else re.split('[:;] ', sentence)[0]}."

    def load(self) -> Any:
        """The function, or the group. Imports its module."""
        return getattr(import_module(f"sparkfleet.cli.{self.module}"), self.attribute)


VERBS: Mapping[str, Verb] = {
    "demo": Verb(
        "fleet.demo",
        "demo",
        "Train a small model, serve it on this machine and ask it a question. Leaves it running.",
        VerbPanel.SET_UP,
    ),
    "init": Verb(
        "fleet.init",
        "init",
        "Find the Sparks and the cables between them, and write inventory.yaml. Changes nothing on any node.",
        VerbPanel.SET_UP,
    ),
    "fabric": Verb(
        "fleet.fabric", "app", "The rails between the nodes: addresses and speed.", VerbPanel.SET_UP
    ),
    "doctor": Verb(
        "fleet.doctor",
        "doctor",
        "Check nodes and links: each fault with its meaning and its remedy. Changes nothing. Exit code 1 on an error.",
        VerbPanel.SET_UP,
    ),
    "selftest": Verb(
        "fleet.selftest",
        "self_test",
        "Test on your Sparks what sparkfleet assumes of them: facts, links, an engine. Exit code 1 on a fault.",
        VerbPanel.SET_UP,
    ),
    "plan": Verb(
        "planning.plan",
        "plan",
        "Show what `apply` would do, with its reasons. Changes nothing.",
        VerbPanel.PLANNING,
    ),
    "suggest": Verb(
        "planning.suggest",
        "suggest",
        "List models that Sparks can serve, each alone, with their predicted speed. Contacts nothing.",
        VerbPanel.PLANNING,
    ),
    "convert": Verb(
        "planning.convert",
        "convert",
        "Make a deployment of a launch script that you have. Runs nothing of it; the plan then judges it.",
        VerbPanel.PLANNING,
    ),
    "inspect": Verb(
        "planning.inspect",
        "inspect",
        "Show a checkpoint's facts: sizes by part, layers, KV cache, MTP head, vision tower, license. Reads no weights.",
        VerbPanel.PLANNING,
    ),
    "explain": Verb(
        "planning.explain",
        "explain",
        "Show a rule: its effect, its conditions, the remedy, and the sources. Without one, list all.",
        VerbPanel.PLANNING,
    ),
    "accuracy": Verb(
        "planning.accuracy",
        "accuracy",
        "Predict every row of a file of measurements and show the errors. Without one: the published ones.",
        VerbPanel.PLANNING,
    ),
    "knowledge": Verb(
        "planning.knowledge",
        "app",
        "The knowledge that plans are made from: its age, part by part.",
        VerbPanel.PLANNING,
    ),
    "apply": Verb(
        "deployment.apply",
        "apply",
        "Serve the deployments in the files. Starts those that do not run; applying twice changes nothing.",
        VerbPanel.SERVING,
    ),
    "scale": Verb(
        "deployment.scale",
        "scale",
        "Run another number of replicas. Engines that stay are not restarted. The deployment's file does not change.",
        VerbPanel.SERVING,
    ),
    "restart": Verb(
        "deployment.restart",
        "restart",
        "Start every engine of a deployment again. The old ones serve until then, or end in turn if memory is short.",
        VerbPanel.SERVING,
    ),
    "load": Verb(
        "deployment.load",
        "load",
        "Start a deployment that is on demand, as its first request would, and wait until it serves.",
        VerbPanel.SERVING,
    ),
    "unload": Verb(
        "deployment.load",
        "unload",
        "End a deployment that is on demand once its requests in flight have ended. Its next request starts it again.",
        VerbPanel.SERVING,
    ),
    "history": Verb(
        "deployment.history",
        "history",
        "List the generations of a deployment: time, author, and what changed.",
        VerbPanel.SERVING,
    ),
    "rollback": Verb(
        "deployment.rollback",
        "rollback",
        "Go back to an earlier generation, with the plan that it had. Engines that still run are not restarted.",
        VerbPanel.SERVING,
    ),
    "delete": Verb(
        "deployment.delete",
        "delete",
        "Stop serving a deployment. Requests in flight are finished first.",
        VerbPanel.SERVING,
    ),
    "status": Verb(
        "fleet.status",
        "status",
        "Show the nodes and the deployments. A fleet that is down is no error; one whose state is not known is.",
        VerbPanel.WATCHING,
    ),
    "top": Verb(
        "fleet.top",
        "top",
        "Show nodes, groups and their speed, live. Keys open a group's log, its events and the reasons of its plan.",
        VerbPanel.WATCHING,
    ),
    "describe": Verb(
        "deployment.describe",
        "describe",
        "Show one deployment: its plan with reasons, its groups, and its last events.",
        VerbPanel.WATCHING,
    ),
    "events": Verb(
        "fleet.events",
        "events",
        "Print events of the fleet, each with its reason, oldest first.",
        VerbPanel.WATCHING,
    ),
    "logs": Verb(
        "deployment.logs", "logs", "Print the log of one rank of a group's engine.", VerbPanel.WATCHING
    ),
    "usage": Verb(
        "clients.usage",
        "usage",
        "Show requests and tokens by key and model, also of a fleet that is down.",
        VerbPanel.WATCHING,
    ),
    "bench": Verb(
        "clients.bench",
        "bench",
        "Measure a deployment's TTFT and tok/s over the endpoint, beside what its plan predicted. Further plans use it.",
        VerbPanel.WATCHING,
    ),
    "observe": Verb(
        "fleet.observe", "app", "Prometheus, Alertmanager and Grafana for the fleet.", VerbPanel.WATCHING
    ),
    "keys": Verb("clients.keys", "app", "API keys of the endpoint.", VerbPanel.CLIENTS),
    "connect": Verb(
        "clients.connect",
        "connect",
        "Print the configuration of a client for a model of the fleet. Contains no key.",
        VerbPanel.CLIENTS,
    ),
    "ask": Verb(
        "clients.ask",
        "ask",
        "Ask a model one question over the endpoint, as any client would.",
        VerbPanel.CLIENTS,
    ),
    "route": Verb(
        "clients.route",
        "route",
        "Show which group a request would go to now, and why. No engine gets it.",
        VerbPanel.CLIENTS,
    ),
    "up": Verb(
        "fleet.up",
        "up",
        "Start Ray, the controller, the gateway and the deployments. Changes nothing if all of it runs.",
        VerbPanel.NODES,
    ),
    "down": Verb(
        "fleet.down",
        "down",
        "Stop the engines, the gateway, the controller and Ray. `up` or `apply` starts the deployments again.",
        VerbPanel.NODES,
    ),
    "drain": Verb(
        "fleet.drain",
        "drain",
        "Move what runs on a node to the others, and start nothing on it until `undrain`; or let a group finish.",
        VerbPanel.NODES,
    ),
    "undrain": Verb(
        "fleet.drain",
        "undrain",
        "Let a drained node be used again, which starts only what waits for it; or let a drained group get requests.",
        VerbPanel.NODES,
    ),
    "upgrade": Verb(
        "fleet.upgrade",
        "upgrade",
        "Let the fleet run the release of this command. Engines go on; back to the former release if it does not start.",
        VerbPanel.NODES,
    ),
    "move-head": Verb(
        "fleet.move_head",
        "move_head",
        "Move the head to another node, with deployments, keys and secrets. Running engines are kept.",
        VerbPanel.NODES,
    ),
    "models": Verb(
        "planning.models", "app", "Weights on the nodes: list, download, copy, remove.", VerbPanel.NODES
    ),
    "prune": Verb(
        "fleet.prune",
        "prune",
        "Remove models and images that no deployment uses from the nodes. Shows them before you confirm.",
        VerbPanel.NODES,
    ),
    "backup": Verb(
        "fleet.backup",
        "backup",
        "Make a checked copy of the store now. The controller makes one after each change and every hour by itself.",
        VerbPanel.NODES,
    ),
    "restore": Verb(
        "fleet.backup",
        "restore",
        "List the copies of the store, or put one in place. The file that was there is kept.",
        VerbPanel.NODES,
    ),
    "bundle": Verb(
        "fleet.bundle",
        "bundle",
        "Write one file for a report: facts, plans, events, logs, without secrets and identities. Nothing is sent.",
        VerbPanel.NODES,
    ),
    "uninstall": Verb(
        "fleet.uninstall",
        "uninstall",
        "Remove what sparkfleet made on the nodes: environment, state, keys, logs. Models of the Hub stay.",
        VerbPanel.NODES,
    ),
    "help": Verb("help", "show_help", "Show the verbs, or the options of one.", VerbPanel.OTHERS),
    "version": Verb("version", "version", "Print the version.", VerbPanel.OTHERS),
}
"""In the order of `--help`."""

COMPLETING = "_SPARKFLEET_COMPLETE"
"""Variable with which a shell asks for completions: `complete_bash`, `complete_zsh`, …"""

ALIASES: Mapping[str, str] = {"ps": "status"}
"""Names that people type by habit."""

HABITS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("run", "serve", "deploy", "launch", "create"), ("apply",)),
    "start": ("apply", "up", "load"),
    "stop": ("down", "delete", "unload"),
    **dict.fromkeys(("list", "ls", "get", "show", "info"), ("status", "describe")),
    **dict.fromkeys(("rm", "remove", "undeploy"), ("delete",)),
    **dict.fromkeys(("chat", "prompt", "query"), ("ask",)),
    **dict.fromkeys(("pull", "download"), ("models pull", "apply")),
    **dict.fromkeys(("setup", "discover"), ("init",)),
    **dict.fromkeys(("add", "join"), ("init", "up")),
    **dict.fromkeys(("reboot", "cordon", "evict"), ("drain",)),
    **dict.fromkeys(("clean", "cleanup", "gc"), ("prune",)),
    **dict.fromkeys(("undo", "revert"), ("rollback",)),
    **dict.fromkeys(("free", "memory"), ("top",)),
    **dict.fromkeys(("benchmark", "measure", "speed"), ("bench", "fabric measure")),
    **dict.fromkeys(("check", "test"), ("doctor", "selftest")),
    **dict.fromkeys(("update", "install"), ("upgrade", "up")),
}
"""Verbs of other programs, with those that are meant here. The nearest spelling of `stop` is `top`, of `run` `prune`."""

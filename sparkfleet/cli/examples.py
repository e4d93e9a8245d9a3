"""An example of each verb, for its help and for errors of a command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLES: Mapping[str, str] = {
    "demo": "sparkfleet demo",
    "init": "sparkfleet init nvidia@192.168.1.11 nvidia@192.168.1.12",
    "fabric plan": "sparkfleet fabric plan",
    "fabric apply": "sparkfleet fabric apply",
    "fabric firewall": "sparkfleet fabric firewall --apply",
    "fabric measure": "sparkfleet fabric measure --seconds 5",
    "doctor": "sparkfleet doctor spark1",
    "selftest": "sparkfleet selftest",
    "plan": "sparkfleet plan Qwen/Qwen3.6-27B-FP8 --sparks 2 --context 131072",
    "suggest": "sparkfleet suggest --sparks 2 --context 65536",
    "convert": "sparkfleet convert run-vllm.sh",
    "inspect": "sparkfleet inspect Qwen/Qwen3.6-27B-FP8",
    "explain": "sparkfleet explain marlin-nvfp4-race",
    "accuracy": "sparkfleet accuracy rows.csv",
    "knowledge status": "sparkfleet knowledge status",
    "apply": "sparkfleet apply Qwen/Qwen3.6-27B-FP8",
    "scale": "sparkfleet scale assistant 2",
    "restart": "sparkfleet restart assistant",
    "load": "sparkfleet load assistant",
    "unload": "sparkfleet unload assistant",
    "history": "sparkfleet history assistant",
    "rollback": "sparkfleet rollback assistant 3",
    "delete": "sparkfleet delete assistant",
    "status": "sparkfleet status --watch",
    "top": "sparkfleet top",
    "describe": "sparkfleet describe assistant",
    "events": "sparkfleet events assistant --since 2h",
    "logs": "sparkfleet logs assistant --follow",
    "usage": "sparkfleet usage --by model --days 7",
    "bench": "sparkfleet bench assistant --concurrency 1 --concurrency 8",
    "observe config": "sparkfleet observe config monitoring",
    "observe up": "sparkfleet observe up",
    "observe down": "sparkfleet observe down",
    "keys create": "sparkfleet keys create anna --expires 30d",
    "keys limit": "sparkfleet keys limit anna --concurrent 2",
    "keys rotate": "sparkfleet keys rotate anna --grace 12h",
    "keys rotate-internal": "sparkfleet keys rotate-internal",
    "keys list": "sparkfleet keys list",
    "keys revoke": "sparkfleet keys revoke anna",
    "connect": "sparkfleet connect claude-code assistant",
    "ask": 'sparkfleet ask assistant "What is a rail?"',
    "route": "sparkfleet route request.json",
    "up": "sparkfleet up",
    "down": "sparkfleet down",
    "drain": "sparkfleet drain spark2",
    "undrain": "sparkfleet undrain spark2",
    "upgrade": "sparkfleet upgrade",
    "move-head": "sparkfleet move-head spark2",
    "models list": "sparkfleet models list",
    "models pull": "sparkfleet models pull Qwen/Qwen3-8B --nodes spark1,spark2",
    "models push": "sparkfleet models push /models/mine",
    "models prune": "sparkfleet models prune --keep Qwen/Qwen3-8B",
    "prune": "sparkfleet prune",
    "backup": "sparkfleet backup",
    "restore": "sparkfleet restore latest",
    "bundle": "sparkfleet bundle",
    "uninstall": "sparkfleet uninstall",
    "help": "sparkfleet help keys create",
    "version": "sparkfleet version",
}
"""By the words of a verb, without the program."""


def add_examples(command: Any, path: str) -> None:
    """Put the example of a verb below its help; of a group below that of each of its verbs."""
    if path in EXAMPLES:
        command.epilog = f"Example: `{EXAMPLES[path]}`"
    for name, inner in getattr(command, "commands", {}).items():
        add_examples(inner, f"{path} {name}")

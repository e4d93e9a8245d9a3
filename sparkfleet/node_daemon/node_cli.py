"""Brings this node of a fleet up and down. Runs on the node: `python -m sparkfleet.node_daemon.node_cli VERB`.

    prepare   on the head: directories, secrets, addresses; prints the input of the other nodes
    up        on the head: Ray, the controller, and the desired ranks on this node
    join      on any other node: Ray
    move      on any node: a step of moving the head to another node
    gateway   on the head: another address of the endpoint, at once and after a reboot
    controller  on the head: a controller, if Ray runs without one
    store     on the head: lists, makes and restores copies of the store; prints the result
    upgrade   on any node: a step of an upgrade, with the interpreter of the new release
    secrets   on any node: a step of changing the internal secrets; prints those of the engines' tokens
    down      on any node: stops the fleet's processes, and does not restart them at boot
    keep      the process that `up`, `join` and a reboot leave running: see `ray_watchdog`

`up` detaches: it prints the path of a file that will contain the outcome, so that its caller may stop waiting without
stopping the work.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from sparkfleet.controlplane.api.api_models import (
    JoinRequest,
    MoveRequest,
    OnNode,
    SecretsRequest,
    StoreRequest,
    UpgradeRequest,
    UpRequest,
)
from sparkfleet.errors import SparkfleetError
from sparkfleet.node_daemon import (
    gateway_address,
    head_move,
    node_lifecycle,
    ray_watchdog,
    secret_change,
    store_verbs,
    upgrade_steps,
)
from sparkfleet.node_daemon.node_lifecycle import prepare
from sparkfleet.runtime.files.fleet_paths import FleetPaths


def main() -> int:
    """Entry point. Every verb but `keep` reads a request from standard input, as JSON; `keep` takes a state directory."""
    verb = sys.argv[1]
    try:
        if verb == "keep":
            return asyncio.run(ray_watchdog.keep(FleetPaths(Path(sys.argv[2])), sys.argv[3:] == ["next"]))
        given = sys.stdin.read()
        if verb == "prepare":
            print(prepare(UpRequest.model_validate_json(given)).model_dump_json())
        elif verb == "up":
            print(json.dumps(ray_watchdog.begin_up(UpRequest.model_validate_json(given))))
        elif verb == "join":
            print(json.dumps(ray_watchdog.begin_join(JoinRequest.model_validate_json(given))))
        elif verb == "controller":
            asyncio.run(node_lifecycle.make_controller(UpRequest.model_validate_json(given)))
            print("{}")
        elif verb == "gateway":
            answer = asyncio.run(gateway_address.answer(UpRequest.model_validate_json(given)))
            print(json.dumps(answer))
        elif verb == "move":
            answer = asyncio.run(head_move.answer(MoveRequest.model_validate_json(given)))
            print(json.dumps(answer))
        elif verb == "upgrade":
            answer = asyncio.run(upgrade_steps.answer(UpgradeRequest.model_validate_json(given)))
            print(json.dumps(answer))
        elif verb == "secrets":
            print(json.dumps(secret_change.answer(SecretsRequest.model_validate_json(given))))
        elif verb == "store":
            print(json.dumps(store_verbs.answer(StoreRequest.model_validate_json(given))))
        else:
            asyncio.run(ray_watchdog.take_down(OnNode.model_validate_json(given).paths))
    except SparkfleetError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

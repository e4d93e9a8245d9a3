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
    watch     on any node: the watchdog again, if it ended by itself
    keep      the process that `up`, `join` and a reboot leave running: see `ray_watchdog`

`up` detaches: it prints the path of a file that will contain the outcome, so that its caller may stop waiting without
stopping the work.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sparkfleet.errors import SURROUNDINGS, SparkfleetError
from sparkfleet.runtime.files.fleet_paths import FleetPaths


def main() -> int:
    """Entry point. Every verb but `keep` reads a request from standard input, as JSON; `keep` takes a state directory."""
    verb = sys.argv[1]
    try:
        if verb == "keep":
            import asyncio

            from sparkfleet.node_daemon.ray_watchdog import keep

            return asyncio.run(keep(FleetPaths(Path(sys.argv[2])), sys.argv[3:] == ["next"]))
        given = sys.stdin.read()
        if verb == "store":
            _store(given)
        elif verb in {"move", "upgrade", "secrets", "gateway"}:
            _change(verb, given)
        else:
            _run(verb, given)
    except SparkfleetError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.errno not in SURROUNDINGS:
            raise
        from sparkfleet.node_daemon.error_answer import A_FILE

        print(f"{error.filename or A_FILE}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


# A verb imports what it needs: for `store`, the rest of the program is most of its time.


def _store(given: str) -> None:
    from sparkfleet.controlplane.api.store_request import StoreRequest
    from sparkfleet.node_daemon import store_verbs

    print(json.dumps(store_verbs.answer(StoreRequest.model_validate_json(given))))


def _change(verb: str, given: str) -> None:
    import asyncio

    from sparkfleet.controlplane.api.api_models import MoveRequest, SecretsRequest, UpgradeRequest, UpRequest
    from sparkfleet.node_daemon import gateway_address, head_move, secret_change, upgrade_steps

    answer: Any
    if verb == "gateway":
        answer = asyncio.run(gateway_address.answer(UpRequest.model_validate_json(given)))
    elif verb == "move":
        answer = asyncio.run(head_move.answer(MoveRequest.model_validate_json(given)))
    elif verb == "upgrade":
        answer = asyncio.run(upgrade_steps.answer(UpgradeRequest.model_validate_json(given)))
    else:
        answer = secret_change.answer(SecretsRequest.model_validate_json(given))
    print(json.dumps(answer))


def _run(verb: str, given: str) -> None:
    import asyncio

    from sparkfleet.controlplane.api.api_models import JoinRequest, UpRequest
    from sparkfleet.controlplane.api.store_request import OnNode
    from sparkfleet.node_daemon import node_lifecycle, ray_watchdog

    if verb == "prepare":
        print(node_lifecycle.prepare(UpRequest.model_validate_json(given)).model_dump_json())
    elif verb == "up":
        print(json.dumps(ray_watchdog.begin_up(UpRequest.model_validate_json(given))))
    elif verb == "join":
        print(json.dumps(ray_watchdog.begin_join(JoinRequest.model_validate_json(given))))
    elif verb == "controller":
        asyncio.run(node_lifecycle.make_controller(UpRequest.model_validate_json(given)))
        print("{}")
    elif verb == "watch":
        ray_watchdog.resume(OnNode.model_validate_json(given).paths)
    else:
        asyncio.run(ray_watchdog.take_down(OnNode.model_validate_json(given).paths))


if __name__ == "__main__":
    sys.exit(main())

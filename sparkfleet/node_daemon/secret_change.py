"""Changes the secrets that only the fleet's own processes use, in steps, while it serves.

`begin` makes new ones on the head; the former API token stays good, and the gateway knows the former tokens of engines,
which keep theirs until they restart. `finish` drops the former ones. `renew`, of a fleet that is down, needs no former ones
and renews Ray's token, too.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from sparkfleet.controlplane.api.api_models import SecretsRequest
from sparkfleet.controlplane.state.head_address import read_address
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.gateway.access.keys import metrics_token
from sparkfleet.node_daemon.error_answer import error_answer
from sparkfleet.node_daemon.metrics_token_file import write_metrics_token
from sparkfleet.node_daemon.node_lifecycle import alone
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.state_probe import listens
from sparkfleet.runtime.files.token_secrets import SECRET_BYTES, TokenSecrets, mark_of


def answer(request: SecretsRequest) -> dict[str, Any]:
    """The result of a step as JSON, with the engines' secrets, or `error` with its parts."""
    paths = request.paths
    try:
        with alone(paths):
            match request.step:
                case "begin":
                    _begin(paths)
                case "finish":
                    _finish(paths)
                case "renew":
                    _renew(paths)
                case "take":
                    _take(paths, request.engine_tokens)
                case "show":
                    pass
            return _shown(paths)
    except (SparkfleetError, OSError) as error:
        return error_answer(error, means="The change may be half done.", do="Repeat the command.")


def _begin(paths: FleetPaths) -> None:
    tokens = paths.read_token_secrets()
    if tokens.former:
        raise ControlError(
            "A change of the internal secrets is under way already.",
            means="Engines may still have former tokens; nothing was changed.",
            do="`sparkfleet keys rotate-internal --finish` ends it, or shows what it waits for.",
        )
    # In this order: whatever a crash leaves is accepted by every process.
    former = [paths.api_token.read_text().strip()]
    # Of a beginning that was interrupted: the first token is still in use.
    with contextlib.suppress(FileNotFoundError):
        former += paths.former_api_tokens.read_text().split()
    write_atomically(paths.former_api_tokens, "\n".join(former).encode(), durable=True)
    write_atomically(paths.api_token, secrets.token_hex(SECRET_BYTES).encode(), durable=True)
    changed = tokens.changed(secrets.token_hex(SECRET_BYTES))
    write_atomically(paths.engine_tokens, changed.text().encode(), durable=True)


def _finish(paths: FleetPaths) -> None:
    tokens = paths.read_token_secrets().finished()
    write_metrics_token(paths, metrics_token(tokens.current.encode()))
    write_atomically(paths.engine_tokens, tokens.text().encode(), durable=True)
    paths.former_api_tokens.unlink(missing_ok=True)


def _renew(paths: FleetPaths) -> None:
    address = read_address(paths)
    if address is not None and listens(address.ray):
        raise ControlError(
            "Ray runs on this head although no controller answers: nothing was changed.",
            do="`sparkfleet down` stops it; then repeat the command.",
        )
    # Other nodes get theirs with `up`.
    tokens = TokenSecrets(current=secrets.token_hex(SECRET_BYTES))
    write_atomically(paths.engine_tokens, tokens.text().encode(), durable=True)
    for path in (paths.api_token, paths.ray_token):
        write_atomically(path, secrets.token_hex(SECRET_BYTES).encode(), durable=True)
    paths.former_api_tokens.unlink(missing_ok=True)


def _take(paths: FleetPaths, text: str) -> None:
    try:
        TokenSecrets.parse(text)
    except ValueError as error:
        raise ControlError(f"The head's secrets were not taken: {error}.") from error
    paths.take(ray_token="", engine_secret="", engine_tokens=text)


def _shown(paths: FleetPaths) -> dict[str, Any]:
    tokens = paths.read_token_secrets()
    return {
        "engine_tokens": tokens.text(),
        "current": mark_of(tokens.current),
        "under_way": bool(tokens.former),
    }

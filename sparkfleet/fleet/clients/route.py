"""Asks the gateway which group a request would go to, and why. No engine gets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fleet.clients.endpoint import REMEDIES
from sparkfleet.fleet.clients.passing_key import key_for
from sparkfleet.fleet.session import Session
from sparkfleet.specs.standard_input import read_standard_input

if TYPE_CHECKING:
    from aiohttp import Fingerprint

_PATHS = (
    ("messages", "/chat/completions"),
    ("prompt", "/completions"),
    ("documents", "/rerank"),
    ("input", "/responses"),
)
"""Path of a request by a field that only it has."""
MOST_BYTES = 256 << 20
STDIN = Path("-")
_GIVE = "Give a file with the body of a request, or `-` for standard input: `sparkfleet route REQUEST.json`."


def read_request(file: Path) -> tuple[str, bytes]:
    """The path below /v1 that a request is for, by its fields, and its body.

    Raises:
        SpecError: the file cannot be read, or is no request.
    """
    try:
        if file == STDIN:
            body = read_standard_input(MOST_BYTES)
        else:
            with file.open("rb") as source:
                body = source.read(MOST_BYTES)
        document = json.loads(body)
    except OSError as error:
        raise SpecError(f"{file} cannot be read: {error.strerror}.", do=_GIVE) from None
    except (ValueError, RecursionError) as error:
        what = "standard input" if file == STDIN else file
        raise SpecError(f"{what} is no JSON: {error}.", do=_GIVE) from None
    path = next((path for name, path in _PATHS if isinstance(document, dict) and name in document), None)
    if path is None:
        raise SpecError(
            f"{file} is no request of OpenAI's API.",
            do='Expected a JSON object with "model" and "messages", "prompt" or "input".',
        )
    return path, body


async def explain(session: Session, file: Path, key: str) -> dict[str, Any]:
    """The decision of the gateway about the request in `file`, for a key, or for one of its own if that is "".

    Raises:
        SpecError: the file is no request.
        ControlError: the fleet is down, or the gateway refuses the request.
    """
    path, body = read_request(file)
    client = await session.controller()
    trust = await session.endpoint.trust(client)
    async with session.endpoint.url(client) as url, key_for(client, key) as used:
        answer = await explain_at(url, path, body, used, trust)
        if answer.get("left_out"):
            _name_drained(answer, await client.fleet())
    return answer


def _name_drained(answer: dict[str, Any], status: FleetStatus) -> None:
    """Replaces the reason of groups that are drained: the gateway knows them as not ready."""
    for group in status.drained_groups:
        if group.name in answer["left_out"]:
            answer["left_out"][group.name] = f"is drained: `sparkfleet undrain {group.name}`"


async def explain_at(
    url: str, path: str, body: bytes, key: str, trust: Fingerprint | bool = True
) -> dict[str, Any]:
    """The same at the OpenAI endpoint `url` (with `/v1`)."""
    import aiohttp  # a slow import, for requests only

    headers = {
        "authorization": f"Bearer {key}",
        "content-type": "application/json",
        "x-sparkfleet-explain": "only",
    }
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.post(url + path, data=body, headers=headers, ssl=trust) as response,
        ):
            answer: dict[str, Any] = await response.json(content_type=None)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ControlError(f"The endpoint did not answer: {error}.") from None
    if response.status != 200 or "groups" not in answer:
        message = (answer.get("error") or {}).get("message") or f"HTTP {response.status}"
        raise ControlError(
            f"The gateway refuses this request: {message}", do=REMEDIES.get(response.status, "")
        )
    return answer

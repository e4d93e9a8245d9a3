"""`sparkfleet connect`: prints the configuration of a client for a model of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, errors, print_json
from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.capabilities import tools_of
from sparkfleet.engines.harmony import is_harmony
from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fleet.clients.connect import (
    AGENTS,
    AUTHORITY,
    CLIENTS,
    KEY,
    OWN_TOKENS,
    ClientSetup,
    Endpoint,
    setup_of,
)
from sparkfleet.fleet.session import Session
from sparkfleet.planner.types.plan import GroupPlan
from sparkfleet.specs.fields import quote


def connect(
    client: Annotated[
        str,
        typer.Argument(
            help=f"One of {', '.join(CLIENTS)}; or {AUTHORITY}: the certificate that clients have to know.",
            metavar="CLIENT",
        ),
    ],
    name: Annotated[str, typer.Argument(help="The deployment.", metavar="NAME")],
    url: Annotated[
        str, typer.Option("--url", help="Address of the endpoint, if clients reach it under another one.")
    ] = "",
    inventory: InventoryOption = DEFAULT_INVENTORY,
    json: JsonOption = False,
) -> int:
    """Print the configuration of a client for a model of the fleet. Contains no key."""
    return run(_connect(open_session(inventory), client, name, url, json))


async def _connect(session: Session, client: str, name: str, url: str, json: bool) -> int:
    if client != AUTHORITY:
        setup_of(client, Endpoint(url="", model=name))  # an unknown client, before the fleet is asked
    if url and not url.startswith(("http://", "https://")):
        raise SpecError(
            f"--url {quote(url)} is no address that a client can use.",
            do="Expected http:// or https://, a host and a port: `--url http://192.168.1.11:8000`.",
        )
    controller = await session.controller()
    endpoint = await _endpoint(controller, name, url)
    setup = setup_of(client, endpoint)
    if json:
        print_json({"version": OUTPUT_VERSION, "client": client, **setup.model_dump()})
        return Exit.DONE
    errors.print(f"# {setup.place}", style="dim", markup=False)
    console.out(setup.text, highlight=False)
    _notes(session, client, endpoint, setup)
    if others := ", ".join(map(controller.address.endpoint_at, controller.address.entries)):
        errors.print(f"The same endpoint has further addresses (`--url`): {others}", markup=False)
    return Exit.DONE


async def _endpoint(fleet: FleetClient, name: str, url: str) -> Endpoint:
    address = fleet.address.endpoint
    async with fleet as asking:
        status = await asking.fleet()
    found = next(
        (one for one in status.deployments if name == one.name or name in _listed(one.spec).aliases), None
    )
    if found is None:
        names = ", ".join(one.name for one in status.deployments)
        raise ControlError(
            f"There is no deployment {quote(name)}.",
            do=f"Available: {names}." if names else "`sparkfleet apply FILE` starts one.",
        )
    groups = found.plan.groups if found.plan is not None else ()
    contexts = [group.choice.candidate.context for group in groups if group.choice.candidate.context]
    return Endpoint(
        url=_base(url or address),
        model=name,
        context=max(contexts, default=None),
        vision=any(group.vision for group in groups),
        tools=_tools(groups),
        functions_only=any(_takes_functions_only(group) for group in groups),
        authority=status.certificate.authority if status.certificate is not None else "",
        keys=_listed(found.spec).keys,
        on_demand=found.on_demand,
    )


def _tools(groups: Sequence[GroupPlan]) -> bool | None:
    """True if a group parses calls of tools; False if none does."""
    known = {tools_of(group.choice.candidate, group.family) for group in groups}
    return True if True in known else False if known == {False} else None


def _takes_functions_only(group: GroupPlan) -> bool:
    """True for gpt-oss on vLLM, as of 0.32 (`entrypoints/openai/parser/harmony_utils.py`)."""
    candidate = group.choice.candidate
    return candidate.engine == "vllm" and (group.family == "gpt_oss" or is_harmony(candidate.model))


def _base(url: str) -> str:
    plain = url.rstrip("/")
    return plain if plain.endswith("/v1") else plain + "/v1"


class ListedNames(NamedTuple):
    """Public names of a deployment's model, and names of the keys that may use it."""

    aliases: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    """(): every key may use it."""


def _listed(spec: str) -> ListedNames:
    from sparkfleet.specs.deployment import Deployment

    if not spec:
        return ListedNames()
    read = Deployment.model_validate_json(spec)
    return ListedNames(read.aliases, read.keys or ())


def _how_to_get_a_key(endpoint: Endpoint) -> str:
    if not endpoint.keys:
        return "`sparkfleet keys create NAME` makes a key."
    return (
        f"only {', '.join(endpoint.keys)} may use {endpoint.model}. `sparkfleet keys create NAME` makes another key: add its"
        " name to `keys` in the deployment's file, then `sparkfleet apply FILE`."
    )


def _notes(session: Session, client: str, endpoint: Endpoint, setup: ClientSetup) -> None:
    if setup.then:
        errors.print(setup.then, markup=False)
    if client == AUTHORITY:
        return
    if client in AGENTS and endpoint.tools is False:
        errors.print(
            f"{endpoint.model} parses no calls of tools, and every request of {client} has tools: it is refused."
            ' Set "--tool-call-parser" in the "engine_args" of the deployment.',
            markup=False,
        )
    own = OWN_TOKENS.get(client, 0)
    if endpoint.context is not None and endpoint.context < 2 * own:
        errors.print(
            f"{endpoint.model} has a context of {endpoint.context} tokens, and {client} sends about {own:,} of instructions"
            " and tools with each request. Set `context: 65536` in the deployment's file, then `sparkfleet apply FILE`.",
            markup=False,
        )
    if endpoint.on_demand:
        errors.print(
            f"{endpoint.model} is on demand: a request may wait minutes for its start. A stream has a sign of life from 30 s"
            " on; other requests, and a proxy in front, need a time limit of 600 s."
            f" `sparkfleet load {endpoint.model}` starts it before.",
            markup=False,
        )
    if endpoint.authority:
        errors.print(
            f"The endpoint's certificate is of the fleet's own authority: `sparkfleet connect ca {endpoint.model} >"
            " sparkfleet-ca.pem`, and let the client trust that file.",
            markup=False,
        )
    errors.print(f"{KEY}: {_how_to_get_a_key(endpoint)}", markup=False)
    if "//127.0.0.1" in endpoint.url or "//localhost" in endpoint.url:
        errors.print(
            f"Only programs on the head, {session.inventory.head}, reach the endpoint: `gateway: {{host: 0.0.0.0}}` in the"
            " inventory opens it to the network, then `sparkfleet up`.",
            markup=False,
        )

"""Changes the address of the endpoint on a head that runs: at once, and for its next start."""

from __future__ import annotations

from sparkfleet.controlplane.api.api_models import Role, UpRequest
from sparkfleet.controlplane.api.client import connect
from sparkfleet.controlplane.state.head_address import (
    LOOPBACK,
    HeadAddress,
    gateway_entries,
    gateway_tls,
    name_on_network,
    read_address,
    write_address,
)
from sparkfleet.controlplane.state.taken_ports import refuse_endpoint_ports
from sparkfleet.errors import ControlError
from sparkfleet.gateway.listening import GatewayEntry
from sparkfleet.node_daemon.error_answer import error_answer
from sparkfleet.node_daemon.node_lifecycle import alone, check_certificate, check_port
from sparkfleet.node_daemon.role_guard import read_role, write_role
from sparkfleet.node_daemon.start_controller import no_answer
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.ports import free_port
from sparkfleet.specs.inventory import Gateway


async def answer(request: UpRequest) -> dict[str, object]:
    """`late`: the gateways that have not changed yet; or `error`: what, means, do."""
    try:
        return {"late": await change(request)}
    except ControlError as error:
        return error_answer(error)


async def change(request: UpRequest) -> list[str]:
    """Lets the gateways listen as the request's inventory has it. Returns those that have not changed yet.

    The files are written first: a controller or a gateway that starts again meanwhile reads them.

    Raises:
        ControlError: the controller does not answer, or another program or a deployment has the port.
    """
    paths, gateway = request.paths, request.inventory.gateway
    with alone(paths):
        client = await connect(paths)
        before = read_address(paths)
        if client is None or before is None:
            raise no_answer(paths)
        address = _next(before, gateway, gateway_entries(request.inventory))
        async with client.again() as asking:
            plans = [one.plan for one in (await asking.fleet()).deployments if one.plan is not None]
        refuse_endpoint_ports(plans, address.endpoint_ports(request.inventory.head))
        if (address.gateway_host, address.gateway_port) != (before.gateway_host, before.gateway_port):
            check_port(address, own=address.gateway_port == before.gateway_port)
        check_certificate(address)
        role = read_role(paths)
        async with client:
            _store(paths, address, role, gateway)
            try:
                return list(await client.listen(address, request.who))
            except ControlError:
                _store(paths, before, role)
                raise


def _next(before: HeadAddress, gateway: Gateway, entries: tuple[GatewayEntry, ...] = ()) -> HeadAddress:
    name = name_on_network() if before.name == LOOPBACK else before.name
    stays = before.gateway_port if before.gateway_host == gateway.host else free_port(gateway.host)
    return before.model_copy(
        update={
            "gateway_host": gateway.host,
            "gateway_port": gateway.port or stays,
            "name": name,
            "max_body_bytes": gateway.max_body_bytes,
            "origins": gateway.origins,
            "tls": gateway_tls(gateway, name, entries=entries),
            "entries": entries,
        }
    )


def _store(
    paths: FleetPaths, address: HeadAddress, role: Role | None, gateway: Gateway | None = None
) -> None:
    """Stores the address, and the node's role, with `gateway` in its inventory if that is given."""
    write_address(paths, address)
    if role is None or role.up is None:
        return
    if gateway is not None:
        inventory = role.up.inventory.model_copy(update={"gateway": gateway})
        role = role.model_copy(update={"up": role.up.model_copy(update={"inventory": inventory})})
    write_role(paths, role)

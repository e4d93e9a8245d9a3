"""The gateway's address, entries and limit as the inventory has them, against those that it has while the fleet is up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkfleet.controlplane.state.head_address import gateway_tls
from sparkfleet.errors import ControlError
from sparkfleet.fleet.session import Session
from sparkfleet.gateway.listening import GatewayTls
from sparkfleet.specs.inventory import Inventory

if TYPE_CHECKING:  # a slow import, for a controller that answers
    from sparkfleet.controlplane.state.status import FleetStatus


def gateway_change(inventory: Inventory, status: FleetStatus | None) -> str:
    """The change of `gateway:` that is pending, in words; "" for none, or if the inventory does not name it. Pure.

    An inventory without `gateway:` leaves it as it is: another one may have opened it to the network.
    """
    now = status.listening if status is not None else None
    if status is None or now is None or "gateway" not in inventory.model_fields_set:
        return ""
    wanted = inventory.gateway
    fields = (
        ("host", now.host, wanted.host),
        ("port", now.port, wanted.port or now.port),
        ("max_body_mb", now.max_body_bytes // 10**6, wanted.max_body_mb),
        ("origins", _listed(now.origins), _listed(wanted.origins)),
        ("nodes", _listed(tuple(one.node for one in status.entries)), _listed(inventory.entry_nodes)),
        ("tls", _certificate(now.tls), _certificate(gateway_tls(wanted))),
    )
    changed = [f"{name} {before} → {after}" for name, before, after in fields if before != after]
    return f"gateway: {', '.join(changed)}; at once, and open streams go on" if changed else ""


def _listed(names: tuple[str, ...]) -> str:
    return " ".join(names) or "none"


def _certificate(tls: GatewayTls | None) -> str:
    if tls is None:
        return "none"
    return "generated" if tls.is_generated else f"{tls.cert} with {tls.key}"


async def change_gateway(session: Session) -> None:
    """Gives the gateway the address and limit of the inventory, now and for the fleet's next start.

    Raises:
        ControlError: another program has the port, or a gateway cannot listen there: it stays where it is.
        NodeError: the head cannot be reached.
    """
    late = await session.programs.change_gateway()
    if late:
        raise ControlError(
            f"{', '.join(late)}: a gateway has not changed its address yet.",
            means="It does so as soon as it reads its next table.",
            do="`sparkfleet status` shows the endpoint; the same command again checks it.",
        )

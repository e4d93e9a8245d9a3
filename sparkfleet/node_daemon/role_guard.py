"""Keeps a node with the head that it has: refuses a start of another head, or a join to one, while its own lives."""

from __future__ import annotations

from sparkfleet.controlplane.api.api_models import JoinRequest, Role
from sparkfleet.controlplane.state.head_address import read_address
from sparkfleet.controlplane.store_safety.moving import read_move
from sparkfleet.errors import ControlError
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.state_probe import listens, watchdogs


def require_no_other_head(paths: FleetPaths) -> None:
    """For a start of a head here. Raises ControlError if this node has joined a head that lives."""
    role = read_role(paths)
    if role is None or role.join is None or not listens(role.join.ray):
        return
    raise _refusal(f"This node belongs to fleet {role.join.fleet} of {_head(role.join)}, which is running.")


def require_joinable(request: JoinRequest) -> None:
    """For a join. Raises ControlError if this node is a head that lives, or has joined another one that lives."""
    paths = request.paths
    role = read_role(paths)
    if role is None:
        return
    move = read_move(paths.root)
    if move is not None and move.to == request.head:
        return
    if role.join is None:
        address = read_address(paths)
        if paths.root in watchdogs() or (address is not None and listens(address.ray)):
            raise _refusal(f"This node is the head of fleet {request.fleet}, which is running.")
    elif role.join.ray != request.ray and not _same_fleet(paths, request) and listens(role.join.ray):
        raise _refusal(f"This node belongs to fleet {request.fleet} of {_head(role.join)}, which is running.")


def read_role(paths: FleetPaths) -> Role | None:
    """The node's role; None if it has none."""
    try:
        return Role.model_validate_json(paths.role.read_text())
    except FileNotFoundError:
        return None


def write_role(paths: FleetPaths, role: Role) -> None:
    """Stores the node's role."""
    write_atomically(paths.role, role.model_dump_json().encode(), durable=True)


def _same_fleet(paths: FleetPaths, request: JoinRequest) -> bool:
    """True if the request has the secret that this node has: its head has another address now, or was moved."""
    try:
        return paths.ray_token.read_text() == request.ray_token
    except FileNotFoundError:
        return False


def _head(join: JoinRequest) -> str:
    return f"head {join.head} ({join.ray})" if join.head else f"the head at {join.ray}"


def _refusal(what: str) -> ControlError:
    return ControlError(
        what,
        means="Nothing was changed on it: another head would end what serves there.",
        do="Use the inventory of that head: `sparkfleet move-head NODE` moves it, with deployments, keys and secrets. A"
        " fleet of its own needs another name in `fleet:`.",
    )

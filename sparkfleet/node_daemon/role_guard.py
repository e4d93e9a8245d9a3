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
    """Checks before a start of a head here. Raises ControlError if this node has joined a head that lives, or may have."""
    try:
        role = read_role(paths)
    except ControlError as error:
        if read_address(paths) is None and paths.root in watchdogs():
            raise ControlError(
                error.what,
                means="This node may belong to a head that is running, so nothing was changed on it.",
                do="`sparkfleet down` with the inventory of that head releases it.",
            ) from error
        return  # the role of a head, which `up` writes again
    if role is None or role.join is None or not listens(role.join.ray):
        return
    raise _refusal(f"This node belongs to fleet {role.join.fleet} of {_head(role.join)}, which is running.")


def require_joinable(request: JoinRequest) -> bool:
    """Checks before a join. True if this node is a head that the request's has replaced.

    Raises:
        ControlError: this node is a head that lives, or has joined another one that lives.
    """
    paths = request.paths
    try:
        role = read_role(paths)
    except ControlError:
        _require_no_head_here(request)
        return False
    if role is None:
        return False
    move = read_move(paths.root)
    if move is not None and move.to == request.head:
        return False
    if role.join is None:
        if _is_replaced(paths, request):
            return True
        if paths.root in watchdogs():
            raise _is_head(request)
        _require_no_head_here(request)
    elif role.join.ray != request.ray and not _same_fleet(paths, request) and listens(role.join.ray):
        raise _refusal(f"This node belongs to fleet {request.fleet} of {_head(role.join)}, which is running.")
    return False


def _is_replaced(paths: FleetPaths, request: JoinRequest) -> bool:
    """True if the head of the request is one of this head's fleet that replaces it."""
    own = read_address(paths)
    if own is None or not _same_fleet(paths, request):
        return False
    return replaces(request.term, request.head, own.term, request.node)


def replaces(term: int, node: str, own_term: int, own_node: str) -> bool:
    """True if a head is the fleet's in place of this one: its term is higher. Of two with one term, which two commands
    have made on two sides of a broken cable, it is the one whose name is first in the alphabet."""
    return term > own_term or (term == own_term and node < own_node)


def _require_no_head_here(request: JoinRequest) -> None:
    address = read_address(request.paths)
    if address is not None and listens(address.ray):
        raise _is_head(request)


def _is_head(request: JoinRequest) -> ControlError:
    return _refusal(f"This node is the head of fleet {request.fleet}, which is running.")


def read_role(paths: FleetPaths) -> Role | None:
    """The node's role; None if it has none.

    Raises:
        ControlError: the file cannot be read, or has something else.
    """
    try:
        return Role.model_validate_json(paths.role.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its content is not what sparkfleet wrote"
        raise ControlError(
            f"{paths.role} cannot be used: {reason}.",
            means="What runs here goes on; after a reboot nothing starts.",
            do="`sparkfleet up` writes it again.",
        ) from error


def write_role(paths: FleetPaths, role: Role) -> None:
    """Stores the node's role."""
    write_atomically(paths.role, role.for_disk().encode(), durable=True)


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

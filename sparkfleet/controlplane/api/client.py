"""Client of the controller's API, for the command line and the programs of nodes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any
from urllib import parse

from pydantic import ValidationError

from sparkfleet.controlplane.api.api_calls import ApiCaller, Reach
from sparkfleet.controlplane.api.api_models import (
    ApplyRequest,
    BenchRequest,
    KeyRequest,
    OpenDeployments,
    RotateRequest,
)
from sparkfleet.controlplane.api.client_errors import (
    Failing,
    unlike,
)
from sparkfleet.controlplane.sealing import has_open_values
from sparkfleet.controlplane.state.api_keys import KeyRow
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.event import Event
from sparkfleet.controlplane.state.head_address import HeadAddress, read_address
from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.controlplane.state.tables.bench_table import BenchResult
from sparkfleet.controlplane.state.tables.usage_ledger import UsageRow
from sparkfleet.errors import ControlError, WrongFleetError
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.fields import quote


def key_request(name: str, limits: KeyLimits) -> KeyRequest:
    """The request for a new key. Raises ControlError for a name that no key can have."""
    try:
        return KeyRequest(name=name, limits=limits)
    except ValidationError as error:
        expected = error.errors(include_url=False)[0]["msg"]
        raise ControlError(f"{quote(name)} cannot name a key.", do=f"Expected {expected}.") from error


class FleetClient(ApiCaller):
    """Client of one fleet's controller: a method for each request. Use as an asynchronous context manager."""

    def again(self) -> FleetClient:
        """Another client of the same controller, to be entered on its own."""
        return FleetClient(self.address, self._token, self._patience_s, self._reach)

    async def fleet(self) -> FleetStatus:
        """The whole fleet as it is now. Raises ControlError if the controller's version does not match."""
        answer = await self.call("GET", "/v1/fleet")
        try:
            return FleetStatus.model_validate_json(json.dumps(answer))
        except ValidationError as error:
            raise unlike(str(answer.get("sparkfleet", "?"))) from error

    async def serves(self) -> bool:
        """True if any deployment still has a group. Works with a controller of another release, too."""
        return bool((await self.call("GET", "/v1/fleet")).get("deployments"))

    async def apply(self, request: ApplyRequest) -> tuple[int, bool]:
        """Applies a deployment. Returns its generation, and True if that changed anything."""
        path = _path("deployments", request.spec.name)
        answer = await self.change("PUT", path, request.model_dump_json())
        return answer["generation"], answer["changed"]

    async def sealed(self, specs: Sequence[Deployment]) -> tuple[Deployment, ...]:
        """The deployments with sealed environment variables, as the controller stores them.

        Raises ControlError if a value was sealed by another fleet.
        """
        if not any(map(has_open_values, specs)):
            return tuple(specs)
        body = OpenDeployments(specs=tuple(specs)).model_dump_json()
        answer = await self.change("POST", "/v1/seal", body)
        return OpenDeployments.model_validate_json(json.dumps({"specs": answer["specs"]})).specs

    async def history(self, name: str) -> tuple[Desired, ...]:
        """The generations of a deployment that are kept, oldest first; empty if none of that name was ever applied.

        Raises ControlError if the controller's version does not match.
        """
        return tuple(await self.rows(_path("deployments", name, "history"), "generations", Desired))

    async def delete(self, name: str, who: str) -> None:
        """Deletes a deployment."""
        await self.change("DELETE", _path("deployments", name), params={"who": who})

    async def load(self, name: str, who: str) -> None:
        """Lets a deployment on demand start as if a request waited for it, for some seconds.

        Raises ControlError if it is not on demand, or cannot start.
        """
        await self.change("PUT", _path("deployments", name, "load"), params={"who": who})

    async def unload(self, name: str, who: str) -> bool:
        """Ends a deployment on demand once its requests have ended. False if it was not loaded.

        Raises ControlError if it is not on demand.
        """
        answer = await self.change("DELETE", _path("deployments", name, "load"), params={"who": who})
        return bool(answer["changed"])

    async def keep_bench(self, name: str, results: Sequence[BenchResult], who: str) -> None:
        """Stores speeds that were measured of a deployment. Raises ControlError if it does not exist."""
        request = BenchRequest(results=tuple(results)).model_dump_json()
        await self.change("PUT", _path("deployments", name, "bench"), request, params={"who": who})

    async def events(self, after: int, deployment: str | None = None, wait_s: float = 0) -> list[Event]:
        """Events with an id above `after`, oldest first; waits for one, at most `wait_s`.

        Raises ControlError if the controller's version does not match.
        """
        params = {"after": str(after), "wait": str(int(wait_s))}
        if deployment is not None:
            params["deployment"] = deployment
        return await self.rows("/v1/events", "events", Event, params)

    async def all_events(self, deployment: str | None = None, after: int = 0) -> list[Event]:
        """All kept events with an id above `after`, oldest first, over as many answers as it takes."""
        found: list[Event] = []
        while more := await self.events(found[-1].id if found else after, deployment):
            found += more
        return found

    async def keys(self) -> list[KeyRow]:
        """All keys. Raises ControlError if the controller's version does not match."""
        return await self.rows("/v1/keys", "keys", KeyRow)

    async def usage(self, days: int) -> list[UsageRow]:
        """Usage of the last days by day, key and model. Raises ControlError if the controller's version does not match."""
        return await self.rows("/v1/usage", "usage", UsageRow, {"days": str(days)})

    async def create_key(self, name: str, limits: KeyLimits | None = None) -> dict[str, Any]:
        """A new key: `id`, `name`, once `key`, and `late`: gateways that do not know it yet.

        Raises ControlError for a name that is taken or cannot be one.
        """
        request = key_request(name, limits or KeyLimits())
        return await self.change("POST", "/v1/keys", request.model_dump_json(), once=True)

    async def limit_key(self, name: str, limits: KeyLimits) -> dict[str, Any]:
        """Replaces the limits of a key. Returns its `id`, its `name`, and `late`: gateways that do not know them yet."""
        return await self.change("PUT", _path("keys", name, "limits"), limits.model_dump_json())

    async def rotate_key(self, name: str, grace_s: float) -> dict[str, Any]:
        """A new text for a key: `id`, `name`, once `key`, and `late`. The old one is accepted for `grace_s` more."""
        request = RotateRequest(grace_s=grace_s).model_dump_json()
        return await self.change("POST", _path("keys", name, "rotate"), request, once=True)

    async def revoke_key(self, name: str) -> dict[str, Any]:
        """Revokes a key. Returns its `name`, and `late`: gateways that may still accept it."""
        return await self.change("DELETE", _path("keys", name))

    async def listen(self, address: HeadAddress, who: str) -> tuple[str, ...]:
        """Lets the gateways listen at the endpoint of this address; returns those that have not changed yet.

        Raises ControlError if one cannot listen there.
        """
        answer = await self.change("PUT", "/v1/gateway", address.model_dump_json(), params={"who": who})
        return tuple(answer["late"])

    async def drain(self, node: str, who: str) -> None:
        """Lets nothing be started on a node. Raises ControlError if the fleet has no such node."""
        await self.change("PUT", _path("nodes", node, "drain"), params={"who": who})

    async def undrain(self, node: str, who: str) -> None:
        """Takes that back. Raises ControlError if the node is not drained."""
        await self.change("DELETE", _path("nodes", node, "drain"), params={"who": who})

    async def drain_group(self, group: str, who: str) -> tuple[str, ...]:
        """Lets no new request go to a group; returns gateways that do not know it yet.

        Raises ControlError if there is no such group.
        """
        answer = await self.change("PUT", _path("groups", group, "drain"), params={"who": who})
        return tuple(answer["late"])

    async def undrain_group(self, group: str, who: str) -> tuple[str, ...]:
        """Takes that back; returns gateways that do not know it yet. Raises ControlError if it is not drained."""
        answer = await self.change("DELETE", _path("groups", group, "drain"), params={"who": who})
        return tuple(answer["late"])

    async def stop(self) -> None:
        """Stops every group and keeps the desired state."""
        await self.call("POST", "/v1/stop")

    async def resume(self) -> None:
        """Takes `stop` back."""
        await self.call("POST", "/v1/resume")


async def connect(paths: FleetPaths, patience_s: float = 0.0) -> FleetClient | None:
    """A client, if this fleet's controller answers; None if it does not. `patience_s`: see `answering`."""
    address = read_address(paths)
    try:
        token = paths.read_api_token()
    except ControlError:
        return None
    if address is None:
        return None
    with contextlib.suppress(WrongFleetError):
        return await answering(address, token, patience_s=patience_s)
    return None


async def answering(
    address: HeadAddress, token: str, reach: Reach | None = None, patience_s: float = 0.0
) -> FleetClient | None:
    """A client, if a controller answers at this address; None if none does.

    One that fails does answer: taking it for gone would restart Ray under groups that serve.

    Args:
        patience_s: time to wait for an answer. `PATIENCE_S` if the head's Ray listens: it is about to answer.

    Raises:
        WrongFleetError: a controller answers that refuses the token.
    """
    client = FleetClient(address, token, reach=reach)
    async with FleetClient(address, token, patience_s=patience_s, reach=reach) as probe:
        try:
            await probe.ask_version()
        except Failing:
            pass
        except WrongFleetError:
            raise
        except ControlError:
            return None
    client.version, client.trouble, client.fleet_name = probe.version, probe.trouble, probe.fleet_name
    client.api = probe.api
    return client


def _path(kind: str, name: str, part: str = "") -> str:
    """The path of a deployment, a key, a node or a group, whose name has slashes, or of a part of it."""
    quoted = parse.quote(name, safe="/" if kind == "groups" else "")
    return "/".join(filter(None, ("/v1", kind, quoted, part)))

"""A client of the controller's API: what the CLI speaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import aiohttp
from pydantic import ValidationError

from sparkfleet import __version__
from sparkfleet.controlplane.api.api_models import ApplyRequest, KeyRequest
from sparkfleet.controlplane.state.head_address import HeadAddress, read_address
from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.controlplane.state.store import Event
from sparkfleet.errors import ControlError
from sparkfleet.runtime.fleet_paths import FleetPaths

Reach = Callable[[str, int], contextlib.AbstractAsyncContextManager[tuple[str, int]]]
"""From an address on the head to one here that leads there, while it is entered."""

PATIENCE_S = 20.0
"""A controller that Ray restarts is back within 3 to 8 s; calls wait that out."""


class Failing(ControlError):
    """The controller is there, and failed to do what it was asked for."""


class FleetClient:
    """Talks to one fleet's controller. Use as an asynchronous context manager.

    Args:
        address: where the fleet's head listens.
        token: the fleet's API token.
        patience_s: how long a call keeps trying a controller that does not answer.
        reach: makes the head's loopback reachable from here, such as `Channel.forward`; None if this is the head.
    """

    def __init__(
        self, address: HeadAddress, token: str, patience_s: float = PATIENCE_S, reach: Reach | None = None
    ) -> None:
        self.address = address
        self._token = token
        self._patience_s = patience_s
        self._reach = reach
        self._open = contextlib.AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None
        self.version = ""
        """Which sparkfleet the controller is of; "" before it was asked, and where it failed to say."""
        self.trouble = ""
        """Why the controller's own work did not go on when it was asked for its version; "" if it did."""

    async def __aenter__(self) -> Self:
        url = self.address.api
        if self._reach is not None:
            api = urlsplit(url)
            host, port = await self._open.enter_async_context(self._reach(api.hostname or "", api.port or 0))
            url = f"http://{host}:{port}"
        self._session = await self._open.enter_async_context(
            aiohttp.ClientSession(url, headers={"authorization": f"Bearer {self._token}"})
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    def again(self) -> FleetClient:
        """Another client of the same controller, to be entered on its own."""
        return FleetClient(self.address, self._token, self._patience_s, self._reach)

    async def fleet(self) -> FleetStatus:
        """The whole fleet as it is now. Raises ControlError where the controller is of another sparkfleet's kind."""
        answer = await self._call("GET", "/v1/fleet")
        try:
            return FleetStatus.model_validate_json(json.dumps(answer))
        except ValidationError as error:
            raise unlike(str(answer.get("sparkfleet", "?"))) from error

    async def ask_version(self) -> None:
        """Ask which sparkfleet the controller is of, and whether its work goes on."""
        answer = await self._call("GET", "/v1/fleet")
        self.version, self.trouble = str(answer.get("sparkfleet", "?")), str(answer.get("trouble", ""))

    async def serves(self) -> bool:
        """True if anything of any deployment is left. Understands a controller of another release, too."""
        return bool((await self._call("GET", "/v1/fleet")).get("deployments"))

    async def apply(self, request: ApplyRequest) -> tuple[int, bool]:
        """Ask for a deployment: its generation, and whether that changed anything."""
        name = quote(request.spec.name, safe="")
        answer = await self._call("PUT", f"/v1/deployments/{name}", request.model_dump_json())
        return answer["generation"], answer["changed"]

    async def delete(self, name: str, who: str) -> None:
        """No longer serve a deployment."""
        await self._call("DELETE", f"/v1/deployments/{quote(name, safe='')}", params={"who": who})

    async def events(self, after: int, deployment: str | None = None, wait_s: float = 0) -> list[Event]:
        """Events with an id above `after`, oldest first; waits for one, at most `wait_s`.

        Raises ControlError where the controller is of another sparkfleet's kind.
        """
        params = {"after": str(after), "wait": str(int(wait_s))}
        if deployment is not None:
            params["deployment"] = deployment
        answer = await self._call("GET", "/v1/events", params=params)
        try:
            return [Event.model_validate(event) for event in answer["events"]]
        except (KeyError, ValidationError) as error:
            if not self.version:
                await self.ask_version()
            raise unlike(self.version) from error

    async def all_events(self, deployment: str) -> list[Event]:
        """Every event of a deployment that is kept, oldest first: an answer has only so many of them."""
        found: list[Event] = []
        while more := await self.events(found[-1].id if found else 0, deployment):
            found += more
        return found

    async def keys(self) -> list[dict[str, str]]:
        """All keys: `id` and `name`."""
        keys: list[dict[str, str]] = (await self._call("GET", "/v1/keys"))["keys"]
        return keys

    async def create_key(self, name: str) -> dict[str, str]:
        """A new key: `id`, `name`, and once, `key`."""
        answer: dict[str, str] = await self._call("POST", "/v1/keys", KeyRequest(name=name).model_dump_json())
        return answer

    async def revoke_key(self, name: str) -> dict[str, str]:
        """Make a key worthless: its `id` and `name`."""
        answer: dict[str, str] = await self._call("DELETE", f"/v1/keys/{quote(name, safe='')}")
        return answer

    async def stop(self) -> None:
        """Stop every group; what is wanted is not forgotten."""
        await self._call("POST", "/v1/stop")

    async def _call(
        self, method: str, path: str, body: str | None = None, params: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """One call, tried again while nobody answers: the controller may be being restarted."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while True:
            try:
                return await self._once(method, path, body, params)
            except (aiohttp.ClientConnectionError, ConnectionError, TimeoutError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise _unanswered(self.address) from error
                await asyncio.sleep(0.25)

    async def _once(
        self, method: str, path: str, body: str | None, params: dict[str, str] | None
    ) -> dict[str, Any]:
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=60)
        async with self._session.request(method, path, data=body, params=params, timeout=timeout) as response:
            if response.content_type != "application/json":
                raise ControlError(
                    f"The controller answered {response.status} to {method} {path}, and did not say why.",
                    means="It is of another version than this command, or something else listens there.",
                )
            answer: dict[str, Any] = await response.json()
        if "error" in answer:
            kind = Failing if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR else ControlError
            raise kind(answer["error"]["what"], means=answer["error"]["means"], do=answer["error"]["do"])
        return answer


async def connect(paths: FleetPaths, patience_s: float = 0.0) -> FleetClient | None:
    """A client, if a controller answers; None if none does. `patience_s`: see `answering`."""
    address = read_address(paths)
    if address is None:
        return None
    return await answering(address, paths.api_token.read_text(), patience_s=patience_s)


async def answering(
    address: HeadAddress, token: str, reach: Reach | None = None, patience_s: float = 0.0
) -> FleetClient | None:
    """A client, if a controller answers at this address; None if none does.

    One that fails is there: whoever takes it for gone would start Ray anew, under groups that serve.

    Args:
        address: where the fleet's head listens.
        token: the fleet's API token.
        reach: see `FleetClient`.
        patience_s: how long it is waited for. Where the head's Ray listens, `PATIENCE_S`: it is about to answer.
    """
    async with FleetClient(address, token, patience_s=patience_s, reach=reach) as probe:
        try:
            await probe.ask_version()
        except Failing:
            pass
        except ControlError:
            return None
    client = FleetClient(address, token, reach=reach)
    client.version, client.trouble = probe.version, probe.trouble
    return client


def trouble_of(client: FleetClient | None) -> str:
    """Line about a controller that does not work although its Ray lives; "" if it works.

    Args:
        client: what `answering` has found.
    """
    if client is None:
        return (
            f"The head's Ray runs, and its controller has not answered for {PATIENCE_S:.0f} s: it does not come up."
            " Engines that run go on; the fleet is taken for down, and `sparkfleet up` starts the controller anew."
        )
    if not client.trouble:
        return ""
    return (
        f"The controller is being restarted: {client.trouble}."
        " What is served is served on; what is asked for is kept, and is done when it is back."
    )


def unlike(version: str) -> ControlError:
    """Line about a controller of another release than this command."""
    return ControlError(
        f"The control plane runs sparkfleet {version}, this command is {__version__}.",
        means="They may not understand each other.",
        do="`sparkfleet down` and then `sparkfleet up`, with the newer one, puts it on every node; engines load anew.",
    )


def _unanswered(address: HeadAddress) -> ControlError:
    return ControlError(
        f"The controller does not answer at {address.api}.",
        means="The fleet is down, or its controller is being restarted.",
        do="`sparkfleet up` starts it again; nothing that was asked for is lost.",
    )

"""Calls of the controller's API: retried while it does not answer, and refused if its version differs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib import parse

from pydantic import ValidationError

from sparkfleet.controlplane.api.api_models import API_HEADER, API_VERSION, REQUEST_HEADER
from sparkfleet.controlplane.api.client_errors import answer_lost, error_class, unanswered, unlike, unlike_api
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import ControlError
from sparkfleet.values import Value

if TYPE_CHECKING:  # a slow import, for calls only
    import aiohttp

Row = TypeVar("Row", bound=Value)

Reach = Callable[[str, int], contextlib.AbstractAsyncContextManager[tuple[str, int]]]
"""Forwards an address on the head to one on this machine, while it is entered."""

PATIENCE_S = 20.0
"""Seconds for which calls wait for a controller that does not answer: Ray restarts it within 3 to 8 s."""


class ApiCaller:
    """Connection to one fleet's controller. Use as an asynchronous context manager.

    Args:
        patience_s: time for which a call retries a controller that does not answer.
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
        """Version of the controller's sparkfleet; "" before the first answer, and if the answer has none."""
        self.trouble = ""
        """Failure of the controller's own work at the time of `check`; "" if it works."""
        self.api: int | None = None
        """Version of the controller's API; None before the first answer."""
        self.fleet_name = ""
        """Name of the controller's fleet; "" before the first answer."""

    async def __aenter__(self) -> Self:
        import aiohttp

        url = self.address.api
        if self._reach is not None:
            api = parse.urlsplit(url)
            host, port = await self._open.enter_async_context(self._reach(api.hostname or "", api.port or 0))
            url = f"http://{host}:{port}"
        self._session = await self._open.enter_async_context(
            aiohttp.ClientSession(
                url, headers={"authorization": f"Bearer {self._token}", API_HEADER: str(API_VERSION)}
            )
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def ask_version(self) -> None:
        """Reads the controller's version and the failure of its work, if any."""
        answer = await self.call("GET", "/v1/fleet")
        self.version, self.trouble = str(answer.get("sparkfleet", "?")), str(answer.get("trouble", ""))
        self.fleet_name = str(answer.get("fleet", ""))

    def require_same_api(self) -> None:
        """Raises ControlError if the controller has another version of the API than this command."""
        if self.api is not None and self.api != API_VERSION:
            raise unlike_api(self.version, self.api)

    async def rows(
        self, path: str, field: str, row: type[Row], params: dict[str, str] | None = None
    ) -> list[Row]:
        """The list in this field of an answer. Raises ControlError if the controller's version does not match."""
        answer = await self.call("GET", path, params=params)
        try:
            return [row.model_validate_json(json.dumps(one)) for one in answer[field]]
        except (KeyError, ValidationError) as error:
            if not self.version:
                await self.ask_version()
            raise unlike(self.version) from error

    async def change(
        self,
        method: str,
        path: str,
        body: str | None = None,
        params: dict[str, str] | None = None,
        once: bool = False,
    ) -> dict[str, Any]:
        """A call that changes something: only on a controller with the same version of the API.

        All of its tries have one id: the controller carries out one of them, and answers the others alike.
        """
        if self.api is None:
            await self.ask_version()
        self.require_same_api()
        return await self.call(method, path, body, params, once, headers={REQUEST_HEADER: uuid.uuid4().hex})

    async def call(
        self,
        method: str,
        path: str,
        body: str | None = None,
        params: dict[str, str] | None = None,
        once: bool = False,
        *,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """One call, retried while there is no answer: the controller may be restarting.

        With `once` it is not repeated if it may have arrived: a second rotation would end the text that the first one keeps.
        """
        import aiohttp

        deadline = asyncio.get_running_loop().time() + self._patience_s
        while True:
            try:
                return await self._once(method, path, body, params, headers)
            except (
                aiohttp.ClientConnectionError,
                aiohttp.ClientPayloadError,  # it ended in the middle of an answer
                ConnectionError,
                TimeoutError,
            ) as error:
                if once and not isinstance(error, aiohttp.ClientConnectorError):
                    raise answer_lost() from error
                if asyncio.get_running_loop().time() > deadline:
                    raise unanswered(self.address.api) from error
                await asyncio.sleep(0.25)

    async def _once(
        self,
        method: str,
        path: str,
        body: str | None,
        params: dict[str, str] | None,
        headers: dict[str, str] | None,
    ) -> dict[str, Any]:
        import aiohttp

        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=60)
        async with self._session.request(
            method, path, data=body, params=params, headers=headers, timeout=timeout
        ) as response:
            if response.content_type != "application/json":
                raise ControlError(
                    f"The controller returned {response.status} for {method} {path}, without a reason.",
                    means="Its version differs from this command's, or another program listens on its port.",
                )
            answer: dict[str, Any] = await response.json()
            if API_HEADER in response.headers or response.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                self.api = _number(response.headers.get(API_HEADER, "0"))
        if "error" in answer:
            raise error_class(response.status)(
                answer["error"]["what"], means=answer["error"]["means"], do=answer["error"]["do"]
            )
        return answer


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0

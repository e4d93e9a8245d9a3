"""The listening socket of the controller's API: bound as soon as its port and its token allow, and again for each change.

While the controller waits for its store, every request is answered with 503 and the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from sparkfleet.controlplane.api.api_tokens import ApiTokens
from sparkfleet.controlplane.state.status import STATUS_VERSION
from sparkfleet.errors import SparkfleetError

log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Seconds between two attempts to read the token and to bind the port."""
CLOSES_S = 0.2
"""Seconds for requests in flight if the application changes: clients try again."""

BuildApp = Callable[[ApiTokens], web.Application]
"""An application, given the API tokens."""


class ApiServer:
    """Serves one application at a time.

    Args:
        url: `http://host:port`, on which it listens.
        token: file of the API token.
        former: file of the tokens that are accepted, too, while the fleet's secrets change.
        trouble: receives the reason for which it does not listen; "" as soon as it does.
    """

    def __init__(self, url: str, token: Path, former: Path, trouble: Callable[[str], None]) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._token = token
        self._former = former
        self._trouble = trouble
        self._build: BuildApp | None = None
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._refusal = ""
        """The words with which everybody is refused; "" if the application is served."""

    def show(self, build: BuildApp) -> None:
        """Serves this application from now on."""
        self._build = build
        self._changed.set()

    async def run(self) -> None:
        """Serves until it is cancelled. A port or a token that is not available is tried again every second."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while not await self._switch():
                    await asyncio.sleep(AGAIN_S)
        finally:
            await self._close()

    async def _switch(self) -> bool:
        """Serves the application that was shown last; False if it cannot."""
        assert self._build is not None
        try:
            tokens = ApiTokens.read(self._token, self._former)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return await self._refuse(f"The API token {self._token} cannot be read: {reason}.")
        await self._close()
        try:
            await self._listen(self._build(tokens))
        except OSError as error:
            return self._fail(
                f"The controller's API cannot listen on {self._host}:{self._port}: {error.strerror}."
            )
        self._refusal = ""
        self._trouble("")
        return True

    async def _refuse(self, words: str) -> bool:
        """Refuses everybody, with the reason, on one socket for as long as there is no token."""
        if self._runner is not None and words == self._refusal:
            return False
        await self._close()
        try:
            await self._listen(refusing(SparkfleetError(words), None))
            self._refusal = words
        except OSError as error:
            log.error("the API cannot listen either: %s", error)
        return self._fail(words)

    def _fail(self, words: str) -> bool:
        log.error("%s", words)
        self._trouble(words)
        return False

    async def _listen(self, app: web.Application) -> None:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSES_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port, reuse_address=True).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner

    async def _close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


def refusing(error: SparkfleetError, tokens: ApiTokens | None) -> web.Application:
    """An application that answers every request with 503 and a reason.

    Args:
        error: the reason.
        tokens: the API tokens, of which a request needs one for the reason's details; None: no request needs one.
    """

    async def answer(request: web.Request) -> web.Response:
        known = tokens is None or tokens.admits(request.headers.get("authorization", ""))
        what = error.what if known else "The controller waits."
        means, do = (error.means, error.do) if known else ("", "")
        body = {"version": STATUS_VERSION, "error": {"what": what, "means": means, "do": do}}
        return web.json_response(body, status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"retry-after": "2"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app

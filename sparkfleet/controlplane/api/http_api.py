"""The controller's HTTP API on the head's loopback, for the CLI and for Prometheus.

Every path but `/metrics` and `/targets` needs the fleet's API token. Answers carry `version`.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import ValidationError

from sparkfleet import __version__
from sparkfleet.controlplane.api.api_models import (
    API_HEADER,
    API_VERSION,
    REQUEST_HEADER,
    ApplyRequest,
    BenchRequest,
    KeyRequest,
    OpenDeployments,
    RotateRequest,
)
from sparkfleet.controlplane.api.api_tokens import ApiTokens
from sparkfleet.controlplane.controller import Controller
from sparkfleet.controlplane.sealing import sealed, sealed_deployment
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.status import STATUS_VERSION
from sparkfleet.controlplane.state.tables.usage_ledger import KEEP_DAYS
from sparkfleet.controlplane.store_safety.opening import unusable
from sparkfleet.errors import ControlError, SparkfleetError
from sparkfleet.gateway.access.host_header import address_in
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.group.group_name import required_group
from sparkfleet.runtime.sealed_env import EnvSealer
from sparkfleet.specs.fields import quote
from sparkfleet.values import Value

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/metrics", "/targets"})
MAX_WAIT_S = 30.0
LARGEST = 2**63 - 1
"""Largest number that SQLite takes."""
FOR_EVERY_VERSION = frozenset({"/v1/stop"})
"""Changes by every release: stopping the fleet is the first step to another version of it."""


def build(
    controller: Controller, tokens: ApiTokens, registry: CollectorRegistry, sealer: EnvSealer
) -> web.Application:
    """The application. `sealer`: seals the environment variables of deployments before they are stored."""
    api = _Api(controller, registry, sealer)
    app = web.Application(
        middlewares=[
            _with_api_version,
            _errors(controller.store_path),
            _own_host,
            _authenticate(tokens),
            _same_api_version,
        ],
        client_max_size=4 << 20,
    )
    app.add_routes(
        [
            web.get("/v1/fleet", api.fleet),
            web.put("/v1/deployments/{name}", api.put),
            web.post("/v1/seal", api.seal),
            web.delete("/v1/deployments/{name}", api.delete),
            web.get("/v1/deployments/{name}/history", api.history),
            web.put("/v1/deployments/{name}/load", api.load),
            web.delete("/v1/deployments/{name}/load", api.unload),
            web.put("/v1/deployments/{name}/bench", api.keep_bench),
            web.put("/v1/gateway", api.listen),
            web.put("/v1/nodes/{name}/drain", api.drain),
            web.delete("/v1/nodes/{name}/drain", api.undrain),
            web.put("/v1/groups/{group:.+}/drain", api.drain_group),
            web.delete("/v1/groups/{group:.+}/drain", api.undrain_group),
            web.get("/v1/events", api.events),
            web.get("/v1/keys", api.list_keys),
            web.get("/v1/usage", api.usage),
            web.post("/v1/keys", api.create_key),
            web.delete("/v1/keys/{name}", api.revoke_key),
            web.put("/v1/keys/{name}/limits", api.limit_key),
            web.post("/v1/keys/{name}/rotate", api.rotate_key),
            web.post("/v1/stop", api.stop),
            web.post("/v1/resume", api.resume),
            web.get("/metrics", api.metrics),
            web.get("/targets", api.targets),
        ]
    )
    return app


class _Api:
    def __init__(self, controller: Controller, registry: CollectorRegistry, sealer: EnvSealer) -> None:
        self._controller = controller
        self._registry = registry
        self._sealer = sealer

    async def fleet(self, request: web.Request) -> web.Response:
        return _json(self._controller.queries.status())

    async def put(self, request: web.Request) -> web.Response:
        apply = ApplyRequest.model_validate_json(await request.read())
        spec, plan = sealed(apply.spec, apply.plan, self._sealer)
        desired, changed = await self._controller.commands.put(
            spec, plan, apply.who, apply.retry, apply.base, request=_request_id(request)
        )
        return _answer(generation=desired.generation, changed=changed)

    async def seal(self, request: web.Request) -> web.Response:
        wanted = OpenDeployments.model_validate_json(await request.read())
        specs = [sealed_deployment(one, self._sealer).model_dump(mode="json") for one in wanted.specs]
        return _answer(specs=specs)

    async def history(self, request: web.Request) -> web.Response:
        generations = self._controller.queries.history(request.match_info["name"])
        listed = [one.model_dump(mode="json") for one in generations]
        return _answer(generations=listed)

    async def delete(self, request: web.Request) -> web.Response:
        await self._controller.commands.remove(
            request.match_info["name"], _who(request), _request_id(request)
        )
        return _answer()

    async def load(self, request: web.Request) -> web.Response:
        await self._controller.commands.load(request.match_info["name"], _who(request))
        return _answer()

    async def unload(self, request: web.Request) -> web.Response:
        changed = await self._controller.commands.unload(
            request.match_info["name"], _who(request), _request_id(request)
        )
        return _answer(changed=changed)

    async def keep_bench(self, request: web.Request) -> web.Response:
        measured = BenchRequest.model_validate_json(await request.read())
        await self._controller.commands.keep_bench(
            request.match_info["name"], measured.results, _who(request), _request_id(request)
        )
        return _answer()

    async def listen(self, request: web.Request) -> web.Response:
        address = HeadAddress.model_validate_json(await request.read())
        late = await self._controller.gateways.listen(address, _who(request))
        return _answer(late=sorted(late))

    async def drain(self, request: web.Request) -> web.Response:
        await self._controller.commands.drain(request.match_info["name"], _who(request))
        return _answer()

    async def undrain(self, request: web.Request) -> web.Response:
        await self._controller.commands.undrain(
            request.match_info["name"], _who(request), _request_id(request)
        )
        return _answer()

    async def drain_group(self, request: web.Request) -> web.Response:
        group = required_group(request.match_info["group"])
        late = await self._controller.commands.drain_group(group, _who(request))
        return _answer(late=sorted(late))

    async def undrain_group(self, request: web.Request) -> web.Response:
        group = required_group(request.match_info["group"])
        late = await self._controller.commands.undrain_group(group, _who(request), _request_id(request))
        return _answer(late=sorted(late))

    async def events(self, request: web.Request) -> web.Response:
        events = await self._controller.event_log.events(
            after=_number(request, "after", 0),
            deployment=request.query.get("deployment"),
            wait_s=min(_number(request, "wait", 0), MAX_WAIT_S),
        )
        return _answer(events=[event.model_dump(mode="json") for event in events])

    async def usage(self, request: web.Request) -> web.Response:
        days = min(KEEP_DAYS, max(1, _number(request, "days", 30)))
        rows = [row.model_dump(mode="json") for row in self._controller.usage.last_days(days)]
        return _answer(usage=rows)

    async def list_keys(self, request: web.Request) -> web.Response:
        keys = [row.model_dump(mode="json") for row in self._controller.keys.rows()]
        return _answer(keys=keys)

    async def create_key(self, request: web.Request) -> web.Response:
        wanted = KeyRequest.model_validate_json(await request.read())
        text, key, late = await self._controller.keys.create(wanted.name, wanted.limits)
        return _answer(id=key.id, name=key.name, key=text, late=sorted(late))

    async def limit_key(self, request: web.Request) -> web.Response:
        limits = KeyLimits.model_validate_json(await request.read())
        key, late = await self._controller.keys.limit(request.match_info["name"], limits)
        return _answer(id=key.id, name=key.name, late=sorted(late))

    async def rotate_key(self, request: web.Request) -> web.Response:
        wanted = RotateRequest.model_validate_json(await request.read())
        until = time.time() + wanted.grace_s
        text, key, late = await self._controller.keys.rotate(request.match_info["name"], until)
        return _answer(id=key.id, name=key.name, key=text, late=sorted(late))

    async def revoke_key(self, request: web.Request) -> web.Response:
        name, late = await self._controller.keys.revoke(request.match_info["name"], _request_id(request))
        return _answer(name=name, late=sorted(late))

    async def stop(self, request: web.Request) -> web.Response:
        self._controller.commands.pause()
        return _answer()

    async def resume(self, request: web.Request) -> web.Response:
        self._controller.commands.resume()
        return _answer()

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    async def targets(self, request: web.Request) -> web.Response:
        own = f"{request.url.host}:{request.url.port}"
        return web.json_response(self._controller.queries.targets(own))


def _authenticate(tokens: ApiTokens) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN_PATHS or tokens.admits(request.headers.get("authorization", "")):
            return await handler(request)
        return _error(
            401,
            "The API token is missing or wrong.",
            do="Send the token in api.token of the state directory.",
        )

    return check


@web.middleware
async def _own_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses requests for the open pages under a name: a browser's page reaches loopback under its own (DNS rebinding)."""
    if request.path not in OPEN_PATHS or address_in(request.headers.get("host", "")) is not None:
        return await handler(request)
    return _error(
        421,
        "The Host header of this request is no IP address and not localhost.",
        means="A page in a browser may have sent it, under a name that resolves to this machine.",
        do="Use the address as `sparkfleet status` shows it.",
    )


@web.middleware
async def _with_api_version(request: web.Request, handler: Handler) -> web.StreamResponse:
    response = await handler(request)
    response.headers[API_HEADER] = str(API_VERSION)
    return response


@web.middleware
async def _same_api_version(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses changes by a client of another version of this API; a client of an older release sends none."""
    given = request.headers.get(API_HEADER, "0")
    if request.method == "GET" or request.path in FOR_EVERY_VERSION or given == str(API_VERSION):
        return await handler(request)
    return _error(
        409,
        f"This command has version {given} of the controller's API, the controller has version {API_VERSION}"
        f" (sparkfleet {__version__}).",
        means="Nothing was changed: the request could mean something else to the controller.",
        do=f"Use a command of sparkfleet {__version__}; `sparkfleet version` prints yours.",
    )


def _errors(store: Path) -> Middleware:
    """Answers errors in their words. A store that cannot be written, as on a full disk, has the controller's own."""

    @web.middleware
    async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ValidationError as error:
            return _error(400, f"The request is not valid: {error.errors(include_url=False)[0]['msg']}.")
        except SparkfleetError as error:
            return _error(409, error.what, error.means, error.do)
        except web.HTTPException as error:
            return _error(error.status, f"{request.method} {request.path}: {error.reason}.")
        except sqlite3.OperationalError as error:
            found = unusable(store, error)
            return _error(409, found.what, found.means, found.do)
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            means = "Its state is on the head's disk: if that is full or read-only, nothing can be changed."
            return _error(500, f"The controller failed: {error!r}.", means)

    return errors


def _answer(**fields: object) -> web.Response:
    return web.json_response({"version": STATUS_VERSION, **fields})


def _who(request: web.Request) -> str:
    return request.query.get("who", "somebody")


def _error(status: int, what: str, means: str = "", do: str = "") -> web.Response:
    body = {"version": STATUS_VERSION, "error": {"what": what, "means": means, "do": do}}
    return web.json_response(body, status=status)


def _json(value: Value) -> web.Response:
    return web.Response(text=value.model_dump_json(), content_type="application/json")


def _request_id(request: web.Request) -> str:
    return request.headers.get(REQUEST_HEADER, "")


def _number(request: web.Request, name: str, default: int) -> int:
    try:
        number = int(request.query.get(name, default))
    except ValueError:
        raise ControlError(f"{name}={quote(request.query[name])} is not a whole number.") from None
    if not 0 <= number <= LARGEST:
        raise ControlError(f"{name}={number} is not between 0 and {LARGEST}.")
    return number

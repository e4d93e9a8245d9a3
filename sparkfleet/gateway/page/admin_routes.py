"""Paths below /api that need an admin key, and the request to the controller that each makes. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl

from pydantic import ValidationError

from sparkfleet.gateway.asgi import Headers
from sparkfleet.gateway.page.fleet_change import CaptureRequest, ChangeVerb, FleetChange, LogRequest

NODES = "/api/nodes/{node}/drain"
GROUPS = "/api/groups/{group}/drain"
CAPTURE = "/api/capture"
LOGS = "/api/deployments/{name}/logs"
DEPLOYMENTS: dict[str, ChangeVerb] = {
    "/api/deployments/{name}/stop": "stop",
    "/api/deployments/{name}/start": "start",
    "/api/deployments/{name}/restart": "restart",
    "/api/deployments/{name}/load": "load",
    "/api/deployments/{name}/unload": "unload",
}
_NAMES = {"{node}": "([^/]+)", "{name}": "([^/]+)", "{group}": "(.+)"}
"""Parts of paths that are names; the request to the controller has their form."""
_NUMBER = re.compile(r"[0-9]{1,9}")


class AdminRoute(NamedTuple):
    """A path that matched, with the name in it."""

    template: str
    name: str

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that are allowed."""
        both = ("PUT", "DELETE")
        known = {NODES: both, GROUPS: both, CAPTURE: both, LOGS: ("GET",)}
        return known.get(self.template, ("POST",))

    def request(self, method: str, query: bytes, who: str) -> FleetChange | LogRequest | CaptureRequest:
        """The request to the controller, or to the gateway itself.

        Raises:
            ValueError: a name is none, or a parameter is unknown or no number, with the reason for people.
        """
        if self.template == LOGS:
            return LogRequest.model_validate(
                {"deployment": self.name, **_numbers(query, ("replica", "rank", "lines"))}
            )
        if self.template == CAPTURE:
            if method == "PUT":
                return CaptureRequest.model_validate(_numbers(query, ("minutes",)))
            _numbers(query, ())
            return CaptureRequest(minutes=0)
        if self.template in (NODES, GROUPS):
            _numbers(query, ())
            what = {"node" if self.template == NODES else "group": self.name}
            return FleetChange.model_validate(
                {"verb": "drain" if method == "PUT" else "undrain", "who": who, **what}
            )
        verb, given = DEPLOYMENTS[self.template], _numbers(query, ("generation",))
        return FleetChange(verb=verb, deployment=self.name, generation=given.get("generation"), who=who)


def match(path: str) -> AdminRoute | None:
    """The route of a path; None if there is none."""
    if path == CAPTURE:
        return AdminRoute(CAPTURE, "")
    for template in (NODES, GROUPS, LOGS, *DEPLOYMENTS):
        pattern = re.sub(r"{\w+}", lambda one: _NAMES[one[0]], template)
        if found := re.fullmatch(pattern, path):
            return AdminRoute(template, found[1])
    return None


def reason_of(error: ValueError) -> str:
    """The first error of a request, for people."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}."
    return str(error)


def _numbers(query: bytes, names: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=10):
        if name not in names:
            raise ValueError(f"There is no parameter {name!r}; there are: {', '.join(names) or 'none'}.")
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"{name} is not a whole number.")
        found[name] = int(value)
    return found


def of_another_site(headers: Headers) -> bool:
    """True if a browser sent the request from a page of another origin than the address that it was sent to.

    A key in a header is proof enough against forged requests; this refuses them before any key is looked at.
    """
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    site = values.get(b"sec-fetch-site", [b"same-origin"])
    hosts, origins = values.get(b"host", []), values.get(b"origin", [])
    if len(hosts) != 1 or any(one not in (b"same-origin", b"none") for one in site):
        return True
    return any(one.partition(b"://")[2] != hosts[0] for one in origins)

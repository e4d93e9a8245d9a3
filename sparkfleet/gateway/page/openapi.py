"""OpenAPI description of the page's HTTP API, at `/api`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sparkfleet.gateway.page.admin_routes import CAPTURE, DEPLOYMENTS, GROUPS, LOGS, NODES
from sparkfleet.gateway.page.fleet_change import (
    LOG_LINES,
    MOST_LINES,
    CaptureRequest,
    ChangeVerb,
    FleetChange,
    LogRequest,
)
from sparkfleet.gateway.page.fleet_view import FleetView
from sparkfleet.values import Value

_Fields = Mapping[str, Mapping[str, Any]]
MOST_REQUESTS = 100
"""Requests that are kept."""
_SUMMARIES: dict[ChangeVerb, str] = {
    "stop": "Stops a deployment, whose requests end first (`drain_s` in `GET /api/fleet`); its last generation is kept.",
    "start": "Starts a deployment that was stopped, with the plan of its last generation.",
    "restart": "Starts every engine of a deployment again, at the first rung. The old ones serve until then,"
    " if memory holds both.",
    "load": "Starts a deployment on demand, as a request that waits 10 min for it would. `unload` takes that back.",
    "unload": "Ends a deployment on demand, whose requests end first. The next one starts it again.",
    "drain": "Lets nothing be started on a node. What runs there stays; `sparkfleet drain` plans and moves it.",
    "undrain": "Lets a drained node be used again.",
}
_GROUP_SUMMARIES: dict[ChangeVerb, str] = {
    "drain": "Lets no new request go to a group, DEPLOYMENT/gN/N. Its engine and the requests on it go on.",
    "undrain": "Lets requests go to a drained group again.",
}
_OF_A_GROUP = "With its slashes, as they are or encoded: tiny/g1/0."
_REFUSED = {
    "400": {"description": "A name or a parameter is wrong, or the request has a body."},
    "401": {"description": "No valid key."},
    "403": {"description": "The key is no admin key, or a page of another site sent the request."},
    "404": {"description": "The path is none of these: a name in it is empty, or has a slash."},
    "409": {"description": "The controller refused; nothing was changed."},
    "503": {"description": "The controller does not answer."},
}


@lru_cache(maxsize=1)
def description(version: str) -> bytes:
    """JSON of the description. Made once: it takes 50 ms, in which no stream goes on, and its readers need no key."""
    return json.dumps(openapi(version)).encode()


def openapi(version: str) -> dict[str, Any]:
    """The document, OpenAPI 3.1. `version`: of sparkfleet."""
    schema = FleetView.model_json_schema(ref_template="#/components/schemas/{model}")
    del schema["additionalProperties"]  # the gateway adds to it: no answer would be valid
    schemas = {**schema.pop("$defs", {}), "FleetView": schema}
    fleet = {
        "anyOf": [
            {"allOf": [{"$ref": "#/components/schemas/FleetView"}, _object(_OF_GATEWAY, required=True)]},
            {**_object(_NO_VIEW, required=True), "description": "The controller has not answered yet."},
        ]
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sparkfleet",
            "version": version,
            "description": "Reads and changes the fleet. Reading needs an API key, or a client on the head's loopback. A key"
            " sees the deployments that it may use and its own requests. Logs and changes need an admin key"
            " (`sparkfleet keys create NAME --admin`) in a header, and a request without a body. Models are at /v1,"
            " as OpenAI's and Anthropic's APIs are.",
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
        "paths": _paths(fleet),
    }


def _paths(fleet: dict[str, Any]) -> dict[str, Any]:
    """The paths of the API. `fleet`: schema of the fleet's view."""
    deployment = _name("name", FleetChange, "deployment")
    requests = {"type": "array", "items": _object(_REQUEST), "description": f"At most {MOST_REQUESTS}."}
    return {
        "/api/fleet": _get(
            "The fleet: nodes, links, deployments with plan and prediction, events.",
            fleet,
            "The controller's answer with what the gateway knows of it and of the reader.",
        ),
        "/api/requests": _get(
            "The last requests of this gateway, newest first: model, status, times, tokens; no text.",
            _object({"version": _INTEGER, "requests": requests}, required=True),
            "As the access log has them. For admin keys with `prompt` and `answer` while an admin has switched that on.",
        ),
        CAPTURE: {
            "put": _capture(
                "Keeps the first characters of prompts and answers", *_numbers(CaptureRequest, "minutes")
            ),
            "delete": _capture("Deletes the kept texts"),
        },
        NODES: _drains(_SUMMARIES, _name("node", FleetChange, "node")),
        GROUPS: _drains(_GROUP_SUMMARIES, _name("group", FleetChange, "group", _OF_A_GROUP)),
        **{
            path: {"post": _change(_SUMMARIES[verb], deployment, *_numbers(FleetChange, "generation"))}
            for path, verb in DEPLOYMENTS.items()
        },
        LOGS: {
            "get": {
                "summary": f"The last lines of a rank's log, {LOG_LINES} unless `lines` is given, at most {MOST_LINES}.",
                "security": [{"key": []}],
                "parameters": [deployment, *_numbers(LogRequest, "replica", "rank", "lines")],
                "responses": {"200": _answer("node", "path", "log"), **_REFUSED},
            }
        },
    }


_INTEGER, _NUMBER, _STRING = {"type": "integer"}, {"type": "number"}, {"type": "string"}
_OF_GATEWAY: _Fields = {
    "stale_s": {
        **_NUMBER,
        "description": "Seconds since the controller's answer: `at + stale_s` is the gateway's clock.",
    },
    "reader": {"type": ["string", "null"], "description": "Name of the key; null for this machine."},
    "admin": {"type": "boolean", "description": "True if the key may change the fleet."},
    "capture_until": {
        "type": ["number", "null"],
        "description": "Until when texts of requests are kept, Unix seconds; null if they are not.",
    },
}
_NO_VIEW: _Fields = {"version": _INTEGER, "trouble": _STRING, "stale_s": {"type": "null"}}
_MAYBE, _COUNT = {"type": ["string", "null"]}, {"type": ["integer", "null"]}
_REQUEST: _Fields = {
    "at": {**_NUMBER, "description": "Its end, Unix seconds."},
    "id": _STRING,
    "client_id": {**_MAYBE, "description": "The client's `X-Request-Id`."},
    "key": {**_MAYBE, "description": "Name of its key."},
    "model": _MAYBE,
    "method": _STRING,
    "path": _STRING,
    "status": _INTEGER,
    "error": {**_MAYBE, "description": "Kind of its error."},
    "ms": {**_NUMBER, "description": "Its whole time."},
    "group": {**_MAYBE, "description": "The group that answered."},
    "retries": {**_INTEGER, "description": "Groups that were tried before."},
    "replays": {**_INTEGER, "description": "Times that another group continued it."},
    "first_byte_ms": _NUMBER,
    "bytes": _INTEGER,
    "chunks": _INTEGER,
    "events": {**_INTEGER, "description": "Of a stream."},
    "input_tokens": _COUNT,
    "output_tokens": _COUNT,
    "prompt": {**_STRING, "description": "Its beginning; for admin keys while texts are kept."},
    "answer": {**_STRING, "description": "Its beginning; for admin keys while texts are kept."},
}
"""Fields of `RequestRecord.log_line`, of `PageApp.note`. Those that an engine's answer has are absent without one."""


def _object(fields: _Fields, *, required: bool = False) -> dict[str, Any]:
    return {"type": "object", "properties": fields, **({"required": list(fields)} if required else {})}


def _name(name: str, of: type[Value], field: str, description: str = "") -> dict[str, Any]:
    """A parameter that is part of the path, in the form of a field of the request to the controller."""
    described = {"description": description} if description else {}
    return {"name": name, "in": "path", "required": True, **described, "schema": _schema(of, field)}


def _numbers(of: type[Value], *fields: str) -> list[dict[str, Any]]:
    """Parameters that are numbers, in the bounds of fields of the request to the controller."""
    required = of.model_json_schema().get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _schema(of, name)}
        for name in fields
    ]


def _schema(of: type[Value], field: str) -> dict[str, Any]:
    """A field's schema, without the null that no address has."""
    whole = of.model_json_schema()["properties"][field]
    found = next((one for one in whole.get("anyOf", ()) if one["type"] != "null"), whole)
    return {name: value for name, value in found.items() if name != "title"}


def _change(summary: str, name: dict[str, Any], *numbers: dict[str, Any]) -> dict[str, Any]:
    described = (
        "With `generation`, nothing is changed if another one was applied meanwhile." if numbers else ""
    )
    return {
        "summary": summary,
        "description": described,
        "security": [{"key": []}],
        "parameters": [name, *numbers],
        "responses": {"200": _answer("done"), **_REFUSED},
    }


def _drains(summaries: Mapping[ChangeVerb, str], name: dict[str, Any]) -> dict[str, Any]:
    return {"put": _change(summaries["drain"], name), "delete": _change(summaries["undrain"], name)}


def _capture(summary: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": f"{summary}, in this gateway's memory, for admin keys.",
        "security": [{"key": []}],
        "parameters": list(parameters),
        "responses": {"200": _answer("done"), **_REFUSED},
    }


def _answer(*names: str) -> dict[str, Any]:
    schema = _object({"version": _INTEGER, **dict.fromkeys(names, _STRING)}, required=True)
    return {"description": "Done.", "content": {"application/json": {"schema": schema}}}


def _get(summary: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {
        "get": {
            "summary": summary,
            "description": description,
            "responses": {
                "200": {"description": summary, "content": content},
                "401": {"description": "Neither a valid key nor a client on loopback."},
            },
        }
    }

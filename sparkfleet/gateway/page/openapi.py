"""OpenAPI description of the page's HTTP API, at `/api`. Pure."""

from __future__ import annotations

from typing import Any

from sparkfleet.gateway.page.fleet_view import FleetView


def openapi(version: str) -> dict[str, Any]:
    """The document, OpenAPI 3.1. `version`: of sparkfleet."""
    schema = FleetView.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = {**schema.pop("$defs", {}), "FleetView": schema}
    fleet = {"$ref": "#/components/schemas/FleetView"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sparkfleet",
            "version": version,
            "description": "Reads the fleet. Needs an API key, or a client on the head's loopback. A key sees the"
            " deployments that it may use and its own requests. Models are at /v1, as OpenAI's and Anthropic's APIs are.",
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
        "paths": {
            "/api/fleet": _get(
                "The fleet: nodes, links, deployments with plan and prediction, events.",
                fleet,
                "With `stale_s`, seconds since the controller's answer, and `reader`, the key's name.",
            ),
            "/api/requests": _get(
                "The last requests of this gateway, newest first: model, status, times, tokens; no text.",
                {"type": "object"},
                "As the access log has them.",
            ),
        },
    }


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

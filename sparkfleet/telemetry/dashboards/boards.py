"""The four dashboards. Pure."""

from __future__ import annotations

from sparkfleet.telemetry.dashboards.deployment import DEPLOYMENT
from sparkfleet.telemetry.dashboards.fleet import FLEET
from sparkfleet.telemetry.dashboards.gateway import GATEWAY
from sparkfleet.telemetry.dashboards.node import NODE
from sparkfleet.telemetry.dashboards.panels import GrafanaDashboard

DASHBOARDS: tuple[GrafanaDashboard, ...] = (FLEET, DEPLOYMENT, NODE, GATEWAY)

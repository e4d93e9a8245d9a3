"""Alerts on the fleet, by subject. Each has a section of its name in docs/runbook.md, and a promtool test. Pure."""

from __future__ import annotations

from sparkfleet.telemetry.alerts.controller_alerts import CONTROLLER
from sparkfleet.telemetry.alerts.group_alerts import DEPLOYMENTS, SPEED
from sparkfleet.telemetry.alerts.node_alerts import NODES, RAILS
from sparkfleet.telemetry.rule_values import AlertRule, RuleGroup

EVERY_ALERT: tuple[AlertRule, ...] = (*DEPLOYMENTS, *SPEED, *NODES, *RAILS, *CONTROLLER)
"""In the order of the rule file."""
ALERTS = tuple(
    RuleGroup(name=f"sparkfleet-{name}", interval="15s", rules=rules)
    for name, rules in (
        ("deployments", DEPLOYMENTS),
        ("speed", SPEED),
        ("nodes", NODES),
        ("rails", RAILS),
        ("controller", CONTROLLER),
    )
)

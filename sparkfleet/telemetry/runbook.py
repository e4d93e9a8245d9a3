"""Sections of docs/runbook.md about alerts, written from `alerts/` between two marks. Pure."""

from __future__ import annotations

import re

from sparkfleet.telemetry.alerts import EVERY_ALERT
from sparkfleet.telemetry.rule_values import AlertRule

BEGIN, END = "<!-- alerts: written by scripts/observe.py -->", "<!-- end of alerts -->"
_VALUE = re.compile(r"\{\{ \$value(?: \| \w+)? \}\}")
_LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")


def with_alerts(page: str) -> str:
    """The runbook with a section for each alert in its place. Raises ValueError if it has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the runbook has no {BEGIN} and {END}")
    sections = "\n".join(_section(alert) for alert in EVERY_ALERT)
    return f"{before}{BEGIN}\n\n{sections}\n{END}{after}"


def _section(alert: AlertRule) -> str:
    lasts = "at once" if alert.lasts == "0s" else f"after {alert.lasts}"
    lines = (
        f"### {alert.name}",
        "",
        f"*{_plain(alert.summary)}* {alert.severity.capitalize()}, {lasts}: `{alert.expr}`",
        "",
        f"- Means: {_plain(alert.means)}",
        f"- Look at: {_plain(alert.look)}",
        f"- Do: {_plain(alert.do)}",
        "",
    )
    return "\n".join(lines)


def _plain(template: str) -> str:
    """A template of Prometheus as people read it: <node>, N."""
    return _LABEL.sub(lambda found: f"<{found[1]}>", _VALUE.sub("N", template))

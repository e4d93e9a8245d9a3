"""Rules of Prometheus as values, and their file. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import yaml

from sparkfleet.values import Value

AlertSeverity = Literal["critical", "warning", "info"]

RUNBOOK = "docs/runbook.md"


class RecordingRule(Value):
    """A series computed by Prometheus."""

    record: str
    expr: str
    meaning: str
    engine: str = ""
    """Label of the result; "" if the series is not of one engine."""

    def document(self) -> dict[str, Any]:
        """The rule in Prometheus' form."""
        labels = {"labels": {"engine": self.engine}} if self.engine else {}
        return {"record": self.record, "expr": self.expr, **labels}


class AlertRule(Value):
    """An alert. Its section in the runbook has its name as title."""

    name: str
    expr: str
    lasts: str
    """Time for which the expression holds before the alert fires, as Prometheus writes it."""
    severity: AlertSeverity
    summary: str
    """The fact with its number, as a template of Prometheus."""
    means: str
    look: str
    """Pages and commands that show more."""
    do: str

    def document(self) -> dict[str, Any]:
        """The rule in Prometheus' form."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": f"{self.means} Look at: {self.look} Do: {self.do}",
                "runbook": f"{RUNBOOK}#{self.name.lower()}",
            },
        }


class RuleGroup(Value):
    """Rules that are evaluated together."""

    name: str
    interval: str
    rules: tuple[RecordingRule | AlertRule, ...]


def rule_file(groups: Sequence[RuleGroup], source: str) -> str:
    """A rule file of Prometheus. `source`: the module that it is written from."""
    document = {
        "groups": [
            {"name": one.name, "interval": one.interval, "rules": [rule.document() for rule in one.rules]}
            for one in groups
        ]
    }
    text = yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)
    return f"# Written by `python scripts/observe.py` from {source}; scripts/check compares.\n{text}"

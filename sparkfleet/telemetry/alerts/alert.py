"""Builder of alerts, and an expression that those of several subjects share. Pure."""

from __future__ import annotations

from sparkfleet.telemetry.rule_values import AlertRule, AlertSeverity

SAME_S = 60
"""Times of an error that are no further apart are of the same one, before and after its node's clock was set."""


def for_an_hour(series: str, by: str) -> str:
    """Seconds since the last error, for an hour from its first reading on, by a series with the time of the last error.

    Times, unlike counts, are new after a reboot and after a gap. An error was known if a reading of an hour ago or, after a
    gap, of up to a day before it has it.
    """
    last = f"max by ({by}) (last_over_time({series}[1h]))"
    known = f"max by ({by}) (last_over_time({series}[1d] offset 1h)) + {SAME_S}"
    return f"time() - ({last} > ({known} or {last} - 1))"


def alert(
    name: str, expr: str, lasts: str, severity: AlertSeverity, *, summary: str, means: str, look: str, do: str
) -> AlertRule:
    """An alert with the prefix of its name, and its expression in one line. `lasts`: as `AlertRule.lasts`."""
    return AlertRule(
        name=f"Sparkfleet{name}",
        expr=" ".join(expr.split()),
        lasts=lasts,
        severity=severity,
        summary=summary,
        means=means,
        look=look,
        do=do,
    )

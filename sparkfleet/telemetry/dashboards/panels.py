"""Panels, rows and dashboards as values. Pure."""

from __future__ import annotations

from typing import Literal

from sparkfleet.values import Value

PanelKind = Literal["timeseries", "stat", "table", "timeline"]

GOOD, WARN, BAD, PLAIN, PREDICTED = "green", "orange", "red", "blue", "purple"
"""Colours mean the same on every dashboard: right, worth a look, wrong; measured, predicted."""


class PanelQuery(Value):
    """One query of a panel."""

    expr: str
    legend: str = ""
    instant: bool = False


class Panel(Value):
    """One panel. Its title is a sentence, so that it can be read without knowing the series."""

    title: str
    description: str
    unit: str
    """Grafana's id of the unit: s, bytes, short, percentunit, watt, celsius, hertz, tokens/s as "suffix: tok/s"."""
    queries: tuple[PanelQuery, ...]
    kind: PanelKind = "timeseries"
    span: int = 8
    """Width of 24."""
    limits: tuple[tuple[str, float | None], ...] = ()
    """Colour from each value on, in order; the first has None."""
    may_be_empty: str = ""
    """Reason for which the panel has no data on some fleets, in words; "": it always has."""


class PanelRow(Value):
    """Panels below one title."""

    title: str
    panels: tuple[Panel, ...]


class Variable(Value):
    """A variable that the reader chooses."""

    name: str
    label: str
    series: str
    """Series whose values of the label `name` are offered."""


class GrafanaDashboard(Value):
    """One dashboard."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[PanelRow, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Every panel, in order."""
        return tuple(panel for row in self.rows for panel in row.panels)


def one(expr: str, legend: str = "", instant: bool = False) -> PanelQuery:
    """A query, with its lines joined."""
    return PanelQuery(expr=" ".join(expr.split()), legend=legend, instant=instant)

"""Panels, rows and dashboards as values. Pure."""

from __future__ import annotations

from typing import Literal

from sparkfleet.values import Value

PanelKind = Literal["timeseries", "stat", "table", "timeline"]

GOOD, WARN, BAD, REST, PLAIN, PREDICTED = "green", "orange", "red", "gray", "blue", "purple"
"""Colours mean the same on every dashboard: right, worth a look, wrong, at rest; measured, predicted."""

SERIES_COLOURS = ((".*predicted.*", PREDICTED), (".*measured.*", PLAIN))
STATE_COLOURS = (
    (".* ready", GOOD),
    (".* (starting|updating|stopping)", WARN),
    (".* failed", BAD),
    (".* unloaded", REST),
)
"""Colours of series by their legends: of every time series, and of every timeline of states."""

TOKENS_S = "suffix:tok/s"
NO_GPU = "no GPU on a node of CPUs"
NO_RAIL = "one node has no rails"
NO_DRAFTS = "no speculation"
NO_FAILURE = "nothing has failed"
NOT_ON_DEMAND = "nothing is on demand, or nothing of the kind happened"
NO_EXTERNAL = "no deployment has an external endpoint"
"""Reasons for which a panel has no data."""

Limits = tuple[tuple[str, float | None], ...]
IS_ON: Limits = ((BAD, None), (GOOD, 1))
IS_OFF: Limits = ((GOOD, None), (BAD, 1))


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
    """Grafana's id of the unit: s, bytes, short, percentunit, watt, celsius, hertz, tokens/s as "suffix:tok/s"."""
    queries: tuple[PanelQuery, ...]
    kind: PanelKind = "timeseries"
    span: int = 8
    """Width of 24."""
    limits: Limits = ()
    """Colour from each value on, in order; the first has None."""
    columns: tuple[str, ...] = ()
    """Labels that a table shows, in order."""
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


def panel(
    title: str,
    description: str,
    unit: str,
    *queries: PanelQuery,
    kind: PanelKind = "timeseries",
    span: int = 8,
    limits: Limits = (),
    columns: tuple[str, ...] = (),
    may_be_empty: str = "",
) -> Panel:
    """A panel of these queries."""
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=queries,
        kind=kind,
        span=span,
        limits=limits,
        columns=columns,
        may_be_empty=may_be_empty,
    )


def row(title: str, *panels: Panel) -> PanelRow:
    """A row of these panels."""
    return PanelRow(title=title, panels=panels)

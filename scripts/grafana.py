"""Writes Grafana's dashboards from `sparkfleet/telemetry/dashboards`. Needs the `dev` extra.

    python scripts/grafana.py [--check]

`--check` writes nothing, and ends with 1 if a dashboard is not what would be written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import GraphTresholdsStyleMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from sparkfleet.telemetry.catalogue import CATALOGUE
from sparkfleet.telemetry.dashboards.boards import DASHBOARDS
from sparkfleet.telemetry.dashboards.panels import (
    PLAIN,
    SERIES_COLOURS,
    STATE_COLOURS,
    GrafanaDashboard,
    Panel,
    PanelQuery,
    Variable,
)

OUT = Path(__file__).resolve().parent.parent / "sparkfleet" / "telemetry" / "dashboards" / "json"
HEIGHT = 8
_NEUTRAL = {"stat": ((PLAIN, None),)}
"""Colour of a number that is neither right nor wrong."""
_ADDED = ("Time", "Value", "__name__", "instance", "job")
"""Columns of a table that no series of ours has."""
Builder = timeseries.Panel | stat.Panel | table.Panel | statetimeline.Panel
BUILDERS = {
    "timeseries": timeseries.Panel,
    "stat": stat.Panel,
    "table": table.Panel,
    "timeline": statetimeline.Panel,
}


def source() -> models.DataSourceRef:
    """The Prometheus that the reader has chosen."""
    return models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def query(one: PanelQuery, panel: Panel) -> prometheus.Dataquery:
    """One query."""
    built = prometheus.Dataquery().expr(one.expr).legend_format(one.legend)
    if one.instant:
        built = built.instant().format(
            PromQueryFormat.TABLE if panel.kind == "table" else PromQueryFormat.TIME_SERIES
        )
    return built


def panel(one: Panel) -> Builder:
    """One panel."""
    built = BUILDERS[one.kind]().title(one.title).description(_described(one)).datasource(source())
    built = built.unit(one.unit).span(one.span).height(4 if one.kind == "stat" else HEIGHT)
    for letter, each in zip("ABCDEFGH", one.queries, strict=False):
        built = built.with_target(query(each, one).ref_id(letter))
    if limits := one.limits or _NEUTRAL.get(one.kind):  # Grafana's own are green, and red from 80
        steps = [models.Threshold(color=colour, value=value) for colour, value in limits]
        built = built.thresholds(
            dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
        )
    if one.kind == "table":
        built = built.with_transformation(models.DataTransformerConfig("organize", options=columns(one)))
    named = {"timeseries": SERIES_COLOURS, "timeline": STATE_COLOURS}.get(one.kind, ())
    for legend, colour in named:
        built = built.override_by_regexp(legend, colours(colour))
    if one.kind == "timeseries":
        built = built.min(0).fill_opacity(8)
        # Grafana's own axis of zeros ends at 100, which is 10000 % of a ratio.
        if one.unit == "percentunit":
            built = built.max(1)
        elif one.unit == "short":
            built = built.axis_soft_max(1)
        if one.limits:
            style = common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED)
            built = built.thresholds_style(style)
    return built


def columns(one: Panel) -> dict[str, Any]:
    """Options of a table's columns: those of the panel, in its order, named in words."""
    (series,) = (each for each in CATALOGUE if each.name == one.queries[0].expr)
    hidden = (*_ADDED, *(label for label in series.labels if label not in one.columns))
    return {
        "excludeByName": dict.fromkeys(hidden, True),
        "indexByName": {name: place for place, name in enumerate(one.columns)},
        "renameByName": {name: name.replace("_", " ") for name in one.columns},
    }


def colours(name: str) -> list[models.DynamicConfigValue]:
    """Overrides of a series with a fixed colour."""
    return [models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": name})]


def _described(one: Panel) -> str:
    return f"{one.description} Empty: {one.may_be_empty}." if one.may_be_empty else one.description


def variable(one: Variable) -> dashboard.QueryVariable:
    """A variable that offers the values of a label."""
    return (
        dashboard.QueryVariable(one.name)
        .label(one.label)
        .datasource(source())
        .query(f"label_values({one.series}, {one.name})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def board(one: GrafanaDashboard) -> str:
    """One dashboard, JSON."""
    built = (
        dashboard.Dashboard(one.title)
        .uid(one.uid)
        .description(one.description)
        .tags(["sparkfleet"])
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .readonly()
        .link(dashboard.DashboardLink("sparkfleet").type(models.DashboardLinkType.DASHBOARDS).tags(["sparkfleet"]).as_dropdown(False).include_vars(False).keep_time(True))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )  # fmt: skip
    for each in one.variables:
        built = built.with_variable(variable(each))
    for row in one.rows:
        built = built.with_row(dashboard.Row(row.title))
        for each in row.panels:
            built = built.with_panel(panel(each))
    text = JSONEncoder(sort_keys=True, indent=1).encode(built.build())
    return json.dumps(of_the_schema(json.loads(text)), sort_keys=True, indent=1) + "\n"


def of_the_schema(document: dict[str, Any]) -> dict[str, Any]:
    """The dashboard without what the SDK's encoder adds and Grafana's own schema does not have."""
    del document["style"]
    for each in document["panels"]:
        if "options" in each:
            each["options"] = each["options"] or {}
    for each in document["templating"]["list"]:
        for name in ("auto", "auto_count", "auto_min", "id"):  # of intervals, and of panels
            del each[name]
    return document


def files() -> Iterator[tuple[Path, str]]:
    """Each file with its content."""
    for one in DASHBOARDS:
        yield OUT / f"{one.uid}.json", board(one)


def main() -> int:
    """Write the dashboards, or check them."""
    stale = [(path, text) for path, text in files() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path, _ in stale:
            print(f"stale: {path.name}")
        return int(bool(stale))
    OUT.mkdir(exist_ok=True)
    for path, text in stale:
        path.write_text(text)
    return 0


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, "--check")
    sys.exit(main())

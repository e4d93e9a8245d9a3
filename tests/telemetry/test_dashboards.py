"""Dashboards: every panel has a unit, a title and a description; queries use series that exist; the JSON is theirs."""

import json
import re
import subprocess
from importlib.resources import files

import pytest
import yaml

from sparkfleet.telemetry.catalogue import CATALOGUE
from sparkfleet.telemetry.dashboards.boards import DASHBOARDS
from sparkfleet.telemetry.recording import RECORDING

PANELS = [(board, panel) for board in DASHBOARDS for panel in board.panels]
UNITS = {
    "s", "bytes", "short", "percentunit", "watt", "celsius", "hertz", "Bps", "reqps", "suffix: tok/s",
}  # fmt: skip


def document(board):
    return json.loads((files("sparkfleet.telemetry.dashboards") / "json" / f"{board.uid}.json").read_text())


def test_there_are_four_dashboards():
    assert [board.title for board in DASHBOARDS] == [
        f"sparkfleet: {name}" for name in ("Fleet", "Deployment", "Node", "Gateway")
    ]


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=lambda one: one.title)
def test_a_panel_can_be_read_without_knowing_the_series(board, panel):
    assert panel.unit in UNITS
    assert len(panel.title.split()) >= 3
    assert re.fullmatch(r"[A-Z0-9].*\.", panel.description)
    assert len({query.legend for query in panel.queries}) == len(panel.queries)
    assert "{{" in panel.queries[0].legend or panel.kind in ("stat", "table") or len(panel.queries) == 1


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=lambda one: one.title)
def test_queries_use_series_and_labels_that_exist(board, panel):
    labels = {one.name: set(one.labels) for one in CATALOGUE}
    labels |= {
        f"{one.name}_{part}": set(one.labels) for one in CATALOGUE for part in ("sum", "count", "bucket")
    }
    records = {rule.record for group in RECORDING for rule in group.rules}
    for query in panel.queries:
        named = re.findall(
            r"(sparkfleet[:_][\w:]+)(?:\{([^}]*)\})?", re.sub(r'alertname=~"[^"]*"', "", query.expr)
        )
        assert named or re.search(r"ALERTS\{|\bup\{", query.expr)
        for name, matchers in named:
            assert name in labels or name in records, name
            if name in labels:
                assert set(re.findall(r"(\w+)=", matchers)) <= labels[name], query.expr
        assert set(re.findall(r"\$(\w+)", query.expr)) <= {one.name for one in board.variables}


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda one: one.uid)
def test_the_json_is_that_of_the_values(board):
    """`python scripts/grafana.py` writes it; scripts/check compares to the byte."""
    found = document(board)
    panels = [one for one in found["panels"] if one["type"] != "row"]
    assert (found["uid"], found["title"]) == (board.uid, board.title)
    assert [one["title"] for one in panels] == [panel.title for panel in board.panels]
    for one, panel in zip(panels, board.panels, strict=True):
        assert one["fieldConfig"]["defaults"]["unit"] == panel.unit
        assert one["description"].startswith(panel.description)
        assert [target["expr"] for target in one["targets"]] == [query.expr for query in panel.queries]
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert {one["name"] for one in found["templating"]["list"]} == {
        "datasource",
        *(v.name for v in board.variables),
    }


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda one: one.uid)
def test_panels_do_not_overlap(board):
    places = [one["gridPos"] for one in document(board)["panels"]]
    for index, a in enumerate(places):
        assert a["x"] + a["w"] <= 24
        for b in places[:index]:
            apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], (a, b)


def test_a_repository_shows_them_at_its_top():
    from pathlib import Path

    shown = Path(__file__).resolve().parents[2] / "grafana"
    assert sorted(path.stem for path in shown.glob("*.json")) == sorted(board.uid for board in DASHBOARDS)


def test_prometheus_reads_every_query(tmp_path):
    exprs = [re.sub(r"\$\w+", ".*", query.expr) for _, panel in PANELS for query in panel.queries]
    rules = [{"record": f"r{number}", "expr": expr} for number, expr in enumerate(exprs)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_speed_by_the_number_of_requests(tmp_path):
    """One request at 20 tok/s for half an hour, then three at 45."""
    (board,) = (one for one in DASHBOARDS if one.title.endswith("Deployment"))
    (panel,) = (one for one in board.panels if one.title.endswith("by their number"))
    at = '{deployment="d",group="g"}'
    found = (20, 45, None, None)
    checks = [
        {
            "expr": query.expr.replace("$deployment", ".*"),
            "eval_time": "50m",
            "exp_samples": [] if value is None else [{"labels": at, "value": value}],
        }
        for query, value in zip(panel.queries, found, strict=True)
    ]
    series = {
        "sparkfleet:engine_generation_tokens:rate1m": "20x29 45x30",
        "sparkfleet_group_requests_running": "1x29 3x30",
    }
    inputs = [{"series": f"{name}{at}", "values": values} for name, values in series.items()]
    path = tmp_path / "test.yaml"
    path.write_text(
        yaml.safe_dump({"tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": checks}]})
    )
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

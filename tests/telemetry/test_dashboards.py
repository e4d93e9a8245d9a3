"""Dashboards: every panel has a unit, a title and a description; queries use series that exist; the JSON is theirs."""

import json
import re
import subprocess
from importlib.resources import files
from itertools import product

import pytest
import yaml

from sparkfleet.controlplane.views.metrics_export import DEPLOYMENT_STATES
from sparkfleet.telemetry.catalogue import BOUNDS, CATALOGUE, GROUP_INFO
from sparkfleet.telemetry.dashboards.boards import DASHBOARDS
from sparkfleet.telemetry.dashboards.fleet import FLEET
from sparkfleet.telemetry.recording import RECORDING
from sparkfleet.telemetry.rule_values import rule_file

PANELS = [(board, panel) for board in DASHBOARDS for panel in board.panels]
UNITS = {
    "s", "bytes", "short", "percentunit", "watt", "celsius", "hertz", "Bps", "reqps", "suffix:tok/s",
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
def test_a_colour_has_one_meaning(board):
    """Green is right, orange worth a look, red wrong; blue is measured, purple predicted."""
    for panel in (one for one in document(board)["panels"] if one["type"] != "row"):
        config = panel["fieldConfig"]
        steps = config["defaults"].get("thresholds", {}).get("steps", [])
        if panel["type"] == "stat" and len(steps) == 1:
            assert steps[0]["color"] == "blue"
        else:
            assert {step["color"] for step in steps} <= {"green", "orange", "red"}
        assert steps or panel["type"] != "stat", "Grafana's own limits make each number from 80 on red"
        named = {
            one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"]
            for one in config["overrides"]
        }
        if panel["type"] == "state-timeline":
            for state in DEPLOYMENT_STATES:
                found = [colour for legend, colour in named.items() if re.fullmatch(legend, f"tiny {state}")]
                assert found == [{"ready": "green", "failed": "red", "unloaded": "gray"}.get(state, "orange")]
        elif panel["type"] == "timeseries":
            assert named == {".*predicted.*": "purple", ".*measured.*": "blue"}


def test_a_table_has_its_columns_in_order_and_no_other():
    (panel,) = (one for board in DASHBOARDS for one in board.panels if one.kind == "table")
    (shown,) = (one for one in document(FLEET)["panels"] if one["title"] == panel.title)
    (change,) = shown["transformations"]
    assert change["id"] == "organize"
    hidden = set(change["options"]["excludeByName"])
    columns = {*GROUP_INFO.labels, "Time", "Value", "__name__", "instance", "job"}
    assert columns - hidden == set(panel.columns)
    assert tuple(sorted(panel.columns, key=change["options"]["indexByName"].get)) == panel.columns


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda one: one.uid)
def test_an_axis_of_zeros_is_readable(board):
    """Grafana's own ends at 100, which is 10000 % of a ratio."""
    for panel in (one for one in document(board)["panels"] if one["type"] == "timeseries"):
        config = panel["fieldConfig"]["defaults"]
        assert config.get("max") == (1 if config["unit"] == "percentunit" else None)
        assert config["custom"].get("axisSoftMax") == (1 if config["unit"] == "short" else None)


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


BUCKETS = ("0.1", "1", "+Inf")
VALUES = {
    "bound": BOUNDS, "direction": ("received", "sent"), "group": ("d/g1/0", "d/g1/1", "d/g1/2", "d/g1/3"),
    "kind": ("proposed", "accepted", "input", "output"), "le": BUCKETS, "model": ("d",), "deployment": ("d",),
    "mode": ("prefill_compute", "decode"), "node": ("spark1",), "state": ("ready",), "status": ("200", "503"),
}  # fmt: skip
"""Values of labels on a fleet that has everything; of others one."""
RUNNING = (1, 3, 9, 20)
"""Requests on each group."""


def series_of(name, labels, counts):
    """Every series of a name, as promtool writes them."""
    for values in product(*(VALUES.get(label, ("x",)) for label in labels)):
        at = ",".join(f'{label}="{value}"' for label, value in zip(labels, values, strict=True))
        steps = "0+60x120" if counts else "1x120"
        if name == "sparkfleet_group_requests_running":
            steps = f"{RUNNING[VALUES['group'].index(values[labels.index('group')])]}x120"
        yield {"series": f"{name}{{{at}}}", "values": steps}


def whole_fleet():
    """Series of everything in the catalogue, and of the engines that the rules read, whose groups all run each engine."""
    yield from series_of("up", ("job",), counts=False)
    for spec in CATALOGUE:
        if spec.kind == "histogram":
            for part in ("sum", "count"):
                yield from series_of(f"{spec.name}_{part}", spec.labels, counts=True)
            yield from series_of(f"{spec.name}_bucket", (*spec.labels, "le"), counts=True)
        else:
            yield from series_of(
                spec.name, spec.labels, counts=spec.kind == "counter" or spec.name.endswith("draft_tokens")
            )
    of_engines = {
        name
        for rule in RECORDING[0].rules
        for name in re.findall(r"(?:vllm:|sglang:|trtllm_|llamacpp:)\w+", rule.expr)
    }
    labels = ("deployment", "group", "node", "mode", "position", "token_position")
    for name in sorted(of_engines):
        histogram = ("le",) if name.endswith("_bucket") else ()
        yield from series_of(name, labels + histogram, counts=name.endswith(("_total", "_bucket")))


def test_on_a_fleet_that_has_everything_each_query_and_each_rule_has_data(tmp_path):
    """Those as well that a fleet of CPUs, of one node or without drafts leaves empty."""
    exprs = [re.sub(r"\$\w+", ".*", query.expr) for _, panel in PANELS for query in panel.queries]
    exprs += [f'{rule.record}{{engine="{rule.engine}"}}' for group in RECORDING for rule in group.rules]
    checks = [
        {"expr": f"count({expr}) > bool 0", "eval_time": "20m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for expr in exprs
    ]
    (tmp_path / "recording.yaml").write_text(rule_file(RECORDING, "here"))
    path = tmp_path / "test.yaml"
    test = {"interval": "15s", "input_series": list(whole_fleet()), "promql_expr_test": checks}
    path.write_text(
        yaml.safe_dump({"rule_files": ["recording.yaml"], "evaluation_interval": "15s", "tests": [test]})
    )
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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


def test_starts_of_what_is_on_demand_and_waits_for_them(tmp_path):
    """Two waits of 100 to 180 s, one start of 130 s, and the end of `b` for another; `always` is not on demand."""
    (row,) = (one for one in FLEET.rows if one.title == "On demand")
    exprs = [query.expr for panel in row.panels for query in panel.queries]
    wait = {"120": "0x30 1x30", "180": "0x30 2x30", "+Inf": "0x30 2x30"}
    inputs = [
        *(
            {"series": f'sparkfleet_start_wait_seconds_bucket{{model="b",le="{le}"}}', "values": values}
            for le, values in wait.items()
        ),
        {"series": 'sparkfleet_unloads_total{deployment="b",reason="other"}', "values": "0x30 1x30"},
        {"series": 'sparkfleet_unloads_total{deployment="b",reason="unused"}', "values": "0x60"},
        *(
            {"series": f'sparkfleet_start_seconds_{part}{{deployment="{name}"}}', "values": f"{value}x60"}
            for name in ("b", "always")
            for part, value in (("sum", 130), ("count", 1))
        ),
    ]
    found = (
        [{"labels": '{model="b"}', "value": 120}],
        [{"labels": '{model="b"}', "value": 174}],
        [{"labels": '{deployment="b",reason="other"}', "value": 1}],
        [{"labels": '{deployment="b"}', "value": 130}],
    )
    checks = [
        {"expr": expr, "eval_time": "60m", "exp_samples": samples}
        for expr, samples in zip(exprs, found, strict=True)
    ]
    path = tmp_path / "test.yaml"
    path.write_text(
        yaml.safe_dump({"tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": checks}]})
    )
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

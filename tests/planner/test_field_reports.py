"""Every system of the field reports (docs/field-reports.yaml has the sources): published → planned → predicted."""

import importlib.util
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ROWS = yaml.safe_load((ROOT / "docs" / "field-reports.yaml").read_text())["systems"]
BY_NAME = {row["system"]: row for row in ROWS}

spec = importlib.util.spec_from_file_location("field_reports", ROOT / "scripts" / "field_reports.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


@pytest.fixture(scope="module")
def plans():
    return {row["system"]: script.plan_row(row) for row in ROWS}


def rows(key, *, within="planned"):
    return [pytest.param(row["system"], id=row["system"]) for row in ROWS if key in row[within]]


def test_every_field_report_is_there():
    assert {row["report"] for row in ROWS} == {"000", "001", "002", "003", "004"}
    files = {path.stem for path in (ROOT / "deployments").glob("*.yaml")}
    assert {row["deployment"] for row in ROWS} <= files


@pytest.mark.parametrize("system", rows("refused"))
def test_what_does_not_work_is_refused_with_its_rule(plans, system):
    (refusal,) = plans[system].refused
    assert BY_NAME[system]["planned"]["refused"] in {one.rule for one in refusal.rejected}
    assert refusal.rejected[0].source


@pytest.mark.parametrize("system", [row["system"] for row in ROWS if "refused" not in row["planned"]])
def test_what_was_served_is_planned_so(plans, system):
    planned = BY_NAME[system]["planned"]
    assert not plans[system].refused
    groups = plans[system].deployments[0].groups
    assert len(groups) == planned.get("groups", 1)
    rung = groups[0].choice
    found = {
        "nodes": len(rung.candidate.shape.nodes),
        "tp": rung.candidate.shape.tp,
        "ep": rung.candidate.shape.ep,
        "engine": rung.candidate.engine,
        "method": rung.candidate.speculation.method,
        "verdict": rung.prediction.verdict,
    }
    for name, value in planned.items():
        if name in found:
            assert found[name] == value, name
    for rule in planned.get("notes", ()):
        assert any(rule in note for note in rung.notes)
    assert set(planned.get("rules", ())) <= set(rung.rules)


@pytest.mark.parametrize("system", rows("ladder"))
def test_the_ladder_below_the_choice(plans, system):
    ladder = plans[system].deployments[0].groups[0].ladder
    assert [rung.candidate.speculation.method for rung in ladder] == BY_NAME[system]["planned"]["ladder"]
    assert ladder[0].candidate.speculation.beam_tokens is None
    assert ladder[1].candidate.speculation.beam_tokens == 20, "the second tries with the tokens spelled out"
    assert all(rung.reason for rung in ladder)


@pytest.mark.parametrize("system", rows("alone", within="published"))
def test_the_published_rate_lies_in_the_predicted_band(plans, system):
    row = BY_NAME[system]
    published = row["published"]
    band = plans[system].deployments[0].groups[0].choice.prediction.decode_tps_per_request
    low, high = published.get("low", published["alone"]), published.get("high", published["alone"])
    if "apart" in row:  # told why, and still no further than about a factor of two
        assert 0.45 <= published["alone"] / band.mid <= 2.2
        return
    assert band.low <= high
    assert low <= band.high
    assert 0.6 <= band.mid / published["alone"] <= 1.67


@pytest.mark.parametrize("system", rows("ttft_ms", within="published"))
def test_the_published_time_to_the_first_token(plans, system):
    published = BY_NAME[system]["published"]["ttft_ms"]
    prediction = plans[system].deployments[0].groups[0].choice.prediction
    assert prediction.prompt == 2048
    assert prediction.ttft_ms.low <= published <= prediction.ttft_ms.high


@pytest.mark.parametrize("system", rows("slower"))
def test_two_nodes_are_not_taken_and_the_numbers_say_why(plans, system):
    slower = [one for one in plans[system].deployments[0].rejected if one.why == "slower"]
    told = next(one for one in slower if one.what.startswith(BY_NAME[system]["planned"]["slower"]))
    assert told.tps
    assert "tok/s for one user against" in told.reason


def test_unlike_replicas_get_a_node_each(plans):
    groups = plans["both as one name, one on each Spark"].deployments[0].groups
    assert {group.choice.candidate.shape.nodes for group in groups} == {("spark1",), ("spark2",)}
    assert [group.variant for group in groups] == [0, 1]
    assert [group.choice.candidate.context for group in groups] == [65536, 8192]


def test_weights_of_the_large_ones_are_as_published(plans):
    # Field report 004: 57.64 GiB resident per node.
    parts = (
        plans["Qwen3-235B-A22B-GPTQ-Int4, TP=2 EP=2"].deployments[0].groups[0].choice.prediction.memory_parts
    )
    weights = next(part.bytes for part in parts if part.name == "weights")
    assert weights / 2**30 == pytest.approx(57.64, rel=0.02)


def test_the_table_for_people_has_every_system():
    table = (ROOT / "docs" / "field-reports.md").read_text()
    assert all(f"| {row['system']} |" in table for row in ROWS)
    assert len([line for line in table.splitlines() if line.startswith("| ")]) == len(ROWS) + 1

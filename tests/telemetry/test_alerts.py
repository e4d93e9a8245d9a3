"""Rules and alerts in Prometheus' own checker: each alert fires on its fault, alone, and clears."""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from alert_cases import CASES, FAILED_ALLOCATION, GROUP, NEW, NODE, OLD, SOUND, XID

from sparkfleet.cli.verbs import VERBS
from sparkfleet.telemetry import runbook
from sparkfleet.telemetry.alerts import ALERTS, EVERY_ALERT
from sparkfleet.telemetry.catalogue import CATALOGUE
from sparkfleet.telemetry.recording import RECORDING
from sparkfleet.telemetry.rule_values import rule_file

ROOT = Path(__file__).resolve().parents[2]
CONTROLLER = {'up{job="controller",instance="c"}': "1x1000"}


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    """A directory with both rule files as they are, and evaluated each minute, as is Prometheus' own default."""
    directory = tmp_path_factory.mktemp("rules")
    for name, groups in (("recording", RECORDING), ("alerts", ALERTS)):
        text = rule_file(groups, "here")
        (directory / f"{name}.yaml").write_text(text)
        (directory / f"{name}-1m.yaml").write_text(text.replace("interval: 15s", "interval: 1m"))
    return directory


def _promtool(*args):
    return subprocess.run(
        ["promtool", *map(str, args)], capture_output=True, text=True, timeout=280, check=False
    )


def _succeeds(done):
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case():
    assert {alert.name for alert in EVERY_ALERT} == {f"Sparkfleet{name}" for name in CASES}


def test_prometheus_accepts_the_rules(rules):
    _succeeds(_promtool("check", "rules", rules / "recording.yaml", rules / "alerts.yaml"))


def _check(at, names, labels=()):
    """These alerts fire, with a value of each of these labels."""
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names]
    matchers = ",".join(['alertstate="firing"', *(f'{label}!=""' for label in labels)])
    expr = f"count by (alertname) (ALERTS{{{matchers}}})"
    return {"expr": expr, "eval_time": at, "exp_samples": samples}


def _labels(name):
    """Labels in the texts of an alert."""
    (alert,) = (one for one in EVERY_ALERT if one.name == f"Sparkfleet{name}")
    return sorted(set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.look + alert.do)))


def _scraped(series):
    """With the labels that a scrape adds, so that rules match by labels as on a fleet."""
    name, _, labels = series.partition("{")
    given = {part.partition("=")[0] for part in labels.rstrip("}").split(",")}
    added = [f'{label}="one"' for label in ("instance", "job") if label not in given]
    return f"{name}{{{','.join([*added, *filter(None, [labels.rstrip('}')])])}}}"


def _test_of(name):
    case = CASES[name]
    checks = [_check(case.fires, [f"Sparkfleet{name}"], _labels(name)), _check(case.cleared, [])]
    checks += [_check(case.quiet, [])] if case.quiet else []
    return _test(name, case.series, checks)


def _test(name, given, checks, interval="15s"):
    series = [{"series": _scraped(one), "values": values} for one, values in (CONTROLLER | given).items()]
    return {"name": name, "interval": interval, "input_series": series, "promql_expr_test": checks}


def _tested(rules, tests, every="15s"):
    """Result of `promtool test rules`, which names each test that failed."""
    ending = "" if every == "15s" else f"-{every}"
    files = [f"recording{ending}.yaml", f"alerts{ending}.yaml"]
    path = rules / f"cases{ending}.yml"
    path.write_text(yaml.safe_dump({"rule_files": files, "evaluation_interval": every, "tests": tests}))
    return _promtool("test", "rules", path)


def test_no_alert_fires_on_what_is_sound(rules):
    checks = [_check(at, []) for at in ("10m", "30m", "60m")]
    _succeeds(_tested(rules, [_test(name, given, checks) for name, given in SOUND.items()], "1m"))


def test_a_cable_that_is_plugged_in_again_does_not_flap(rules):
    """Samples that do not begin and end with the window, of which Prometheus extrapolates the increase."""
    given = {'sparkfleet_rail_carrier_changes_total{node="spark1",netdev="r0"}': "4x24 5 6x100"}
    _succeeds(_tested(rules, [_test("again", given, [_check("16m", []), _check("18m", [])], "25s")]))


@pytest.mark.parametrize(
    ("each", "fires"), [(1, []), (100, ["SparkfleetAcceptanceCollapsed"])], ids=["few", "many"]
)
def test_acceptance_is_judged_from_enough_draft_tokens_on(rules, each, fires):
    """Of 40 draft tokens in ten minutes few accepted ones are chance, and a deployment with few requests was named."""
    given = {
        f'sparkfleet_draft_tokens{{{GROUP},kind="proposed"}}': f"0+{each}x900",
        f'sparkfleet_draft_tokens{{{GROUP},kind="accepted"}}': f"0+{each * 0.6}x400 {each * 240}+{each * 0.1}x500",
    }
    _succeeds(_tested(rules, [_test("drafts", given, [_check("125m", fires)])]))


def test_a_home_on_a_disk_of_its_own_is_watched_too(rules):
    """It has the store, logs and compiled kernels; the alert looked at root and hub only."""
    sizes = {"root": (500e9, 1e12), "home": (15e9, 200e9), "hub": (500e9, 1e12)}
    given = {}
    for place, (free, total) in sizes.items():
        given[f'sparkfleet_node_disk_free_bytes{{{NODE},place="{place}"}}'] = f"{free:.0f}x100"
        given[f'sparkfleet_node_disk_total_bytes{{{NODE},place="{place}"}}'] = f"{total:.0f}x100"
    _succeeds(_tested(rules, [_test("home", given, [_check("15m", ["SparkfleetDiskLow"], ["place"])])]))


def test_a_reading_that_is_lost_does_not_begin_the_wait_again(rules):
    """As while `nvidia-smi` hangs, or the controller restarts: an alert that waits for five minutes never fired."""
    cases = {
        "PowerWedge": (
            {
                f'sparkfleet_node_gpu_busy_ratio{{{NODE},gpu="0"}}': 0.96,
                f'sparkfleet_node_gpu_power_watts{{{NODE},gpu="0"}}': 11,
                f'sparkfleet_node_gpu_clock_hertz{{{NODE},gpu="0"}}': 611000000,
            },
            5,
        ),
        "GpuThrottled": ({f'sparkfleet_node_gpu_throttled{{{NODE},gpu="0"}}': 1}, 12),
        "GpuHot": ({f'sparkfleet_node_gpu_temperature_celsius{{{NODE},gpu="0"}}': 88}, 12),
        "DiskLow": (
            {
                f'sparkfleet_node_disk_free_bytes{{{NODE},place="root"}}': 15e9,
                f'sparkfleet_node_disk_total_bytes{{{NODE},place="root"}}': 200e9,
            },
            24,
        ),
    }
    tests = [
        _test(
            name,
            {series: " ".join([f"{value}x{read} stale _x1"] * 12) for series, value in given.items()},
            [_check("15m", [f"Sparkfleet{name}"])],
        )
        for name, (given, read) in cases.items()
    ]
    _succeeds(_tested(rules, tests))


def test_a_group_that_was_given_up_has_that_alert_alone(rules):
    """It has ended, so it reports no more: the runbook had its node restarted."""
    names = ("group_silent_seconds", "group_given_up")
    given = {
        f"sparkfleet_{name}{{{GROUP}}}": f"{value}x100" for name, value in zip(names, (60, 1), strict=True)
    }
    _succeeds(_tested(rules, [_test("given up", given, [_check("10m", ["SparkfleetRestartBreakerOpen"])])]))


def test_an_old_error_of_a_gpu_stays_old(rules):
    """An hour later the reading of an hour ago is that before the gap."""
    checks = [_check(at, []) for at in ("61m", "71m", "100m", "130m", "131m", "160m", "165m")]
    _succeeds(_tested(rules, [_test(name, given, checks) for name, given in OLD.items()], "1m"))


def test_a_new_error_of_a_gpu_is_new_whatever_came_before_it(rules):
    both = ["SparkfleetGpuXid", "SparkfleetGpuAllocationFailed"]
    tests = [
        _test(name, {XID: values, FAILED_ALLOCATION: values}, [_check(at, both)])
        for name, (values, at) in NEW.items()
    ]
    _succeeds(_tested(rules, tests, "1m"))


@pytest.mark.parametrize("every", ["15s", "1m"])
def test_each_alert_fires_alone_with_the_labels_of_its_texts_and_clears(rules, every):
    """Half an hour and more with an evaluation each minute: each evaluates all rules."""
    minutes = {name: int(case.cleared.removesuffix("m")) for name, case in CASES.items()}
    names = [name for name in CASES if (minutes[name] >= 30) == (every == "1m")]
    assert len(names) > 10
    _succeeds(_tested(rules, [_test_of(name) for name in names], every))


def test_an_alert_that_does_not_fire_or_lacks_a_label_is_found_and_named(rules):
    early, unknown = (
        _check("4m", ["SparkfleetLowerRung"]),
        _check("7m", ["SparkfleetLowerRung"], ["endpoint"]),
    )
    for check in (early, unknown):
        done = _tested(
            rules, [_test_of("GroupSilent"), _test_of("LowerRung") | {"promql_expr_test": [check]}]
        )
        assert done.returncode == 1
        assert "LowerRung" in done.stdout + done.stderr
        assert "GroupSilent" not in done.stdout + done.stderr


def _known():
    names = set()
    for one in CATALOGUE:
        names |= {one.name, *(f"{one.name}_{part}" for part in ("bucket", "sum", "count"))}
    return names | {rule.record for group in RECORDING for rule in group.rules} | {"up"}


def _series(expr):
    """Names of series in an expression: words before a brace, a bracket or an end, that are not labels or functions."""
    bare = re.sub(r'"[^"]*"', "", expr)
    bare = re.sub(r"\{[^}]*\}", "", re.sub(r"\b(?:by|on|group_left|ignoring) \([^)]*\)", "", bare))
    return {word for word in re.findall(r"[a-z_]+[\w:]*(?![\w:(]| \()", bare) if "_" in word or ":" in word}


@pytest.mark.parametrize("groups", [RECORDING[1:], ALERTS])
def test_rules_use_only_series_that_exist(groups):
    for rule in (rule for group in groups for rule in group.rules):
        assert _series(rule.expr) <= _known(), rule.expr


def _of_engine(engine):
    """Names that an engine's own source has, with the suffixes that its page gives them."""
    if engine == "vllm":
        package = Path(find_spec("vllm").submodule_search_locations[0])
        text = "".join(
            (package / f"v1/{part}.py").read_text() for part in ("metrics/loggers", "spec_decode/metrics")
        )
        names = set(re.findall(r'(?:name=|\()"(vllm:\w+)"', text))
    else:
        file = f"{engine.replace('.', '')}.txt"
        names = set((Path(__file__).parent / "series" / file).read_text().split())
    return {f"{name}{suffix}" for name in names for suffix in ("", "_total", "_bucket")}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llama.cpp"])
def test_the_engines_series_are_those_of_its_source(engine):
    used = {name for rule in RECORDING[0].rules if rule.engine == engine for name in _series(rule.expr)}
    assert len(used) >= 8
    assert used <= _of_engine(engine)


def test_commands_in_alerts_exist():
    groups = {"models": {"list", "prune"}, "fabric": {"plan", "measure"}, "keys": {"list", "limit", "revoke"}}
    for alert in EVERY_ALERT:
        for verb, sub in re.findall(r"`sparkfleet ([a-z-]+)(?: ([a-z]+)\b)?", alert.look + alert.do):
            assert verb in VERBS, alert.name
            assert verb not in groups or sub in groups[verb], alert.name


def test_the_runbook_needs_its_marks():
    with pytest.raises(ValueError, match="has no <!-- alerts"):
        runbook.with_alerts("# A page")


def test_generated_files_are_up_to_date():
    import importlib.util

    spec = importlib.util.spec_from_file_location("observe_script", ROOT / "scripts" / "observe.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert [str(path) for path, text in script.files() if path.read_text() != text] == [], (
        "python scripts/observe.py"
    )


def test_commands_about_a_deployment_get_a_deployment():
    """One was given a node, which the command refuses."""
    texts = " ".join(text for alert in EVERY_ALERT for text in (alert.summary, alert.look, alert.do))
    given = re.findall(r"sparkfleet (?:describe|events|logs|scale) \{\{ \$labels\.(\w+)", texts)
    assert set(given) == {"deployment"}

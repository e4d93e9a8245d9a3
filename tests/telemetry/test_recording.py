"""Recording rules in Prometheus' own checker: the values of those that calculate."""

import subprocess

import pytest
import yaml

from sparkfleet.telemetry.recording import RECORDING
from sparkfleet.telemetry.rule_values import rule_file

GROUP = 'deployment="d",group="d/g1/0",node="spark1"'
LABELS = ("deployment", "group", "node", "engine")


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    """A directory with the rules."""
    directory = tmp_path_factory.mktemp("rules")
    (directory / "recording.yaml").write_text(rule_file(RECORDING, "here"))
    return directory


def check(rules, given, expr, value):
    """The expression has this value after ten minutes, alone; None: it has none."""
    series = [{"series": name, "values": values} for name, values in given.items()]
    samples = [] if value is None else [{"labels": "{}", "value": value}]
    tests = {
        "expr": f"sum without ({', '.join(LABELS)}) ({expr})",
        "eval_time": "10m",
        "exp_samples": samples,
    }
    path = rules / "test.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "rule_files": ["recording.yaml"],
                "evaluation_interval": "15s",
                "tests": [{"interval": "15s", "input_series": series, "promql_expr_test": [tests]}],
            }
        )
    )
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "value"),
    [
        # 30 drafts in fifteen seconds, of which 45 tokens are accepted: 1.5, and the target's own.
        (
            {
                f"vllm:spec_decode_num_drafts_total{{{GROUP}}}": "0+30x60",
                f"vllm:spec_decode_num_accepted_tokens_total{{{GROUP}}}": "0+45x60",
            },
            2.5,
        ),
        (
            {
                f"vllm:spec_decode_num_drafts_total{{{GROUP}}}": "9x60",
                f"vllm:spec_decode_num_accepted_tokens_total{{{GROUP}}}": "9x60",
            },
            None,
        ),
        ({f"sglang:spec_accept_length{{{GROUP}}}": "2.9x60"}, 2.9),
        ({f"sglang:spec_accept_length{{{GROUP}}}": "0x60"}, None),
    ],
    ids=["vllm", "vllm without requests", "sglang", "sglang without drafts"],
)
def test_tokens_per_step_have_the_targets_own_and_are_absent_without_drafts(rules, given, value):
    check(rules, given, "sparkfleet:engine_tokens_per_step", value)


def test_tokens_per_watt_hour_are_of_all_models_and_all_gpus(rules):
    """20 tok/s and 40 tok/s on two GPUs of 45 W: 60 × 3600 tokens in an hour for 90 Wh."""
    given = {
        'sparkfleet_tokens_total{model="a",kind="output"}': "0+300x60",
        'sparkfleet_tokens_total{model="b",kind="output"}': "0+600x60",
        'sparkfleet_tokens_total{model="b",kind="input"}': "0+6000x60",
        'sparkfleet_node_gpu_power_watts{node="spark1",gpu="0"}': "45x60",
        'sparkfleet_node_gpu_power_watts{node="spark2",gpu="0"}': "45x60",
    }
    check(rules, given, "sparkfleet:output_tokens_per_watt_hour", 2400)
    check(rules, given, "sparkfleet:gpu_power_watts", 90)


def test_measured_over_predicted(rules):
    at = 'deployment="d",group="d/g1/0"'
    given = {
        f"sparkfleet_measured_decode_tokens_per_second{{{at}}}": "15x60",
        f'sparkfleet_predicted_check_decode_tokens_per_second{{{at},bound="mid"}}': "20x60",
        f'sparkfleet_predicted_check_decode_tokens_per_second{{{at},bound="low"}}': "10x60",
        f"sparkfleet_measured_ttft_seconds{{{at}}}": "0.9x60",
        f'sparkfleet_predicted_check_ttft_seconds{{{at},bound="mid"}}': "0.6x60",
    }
    check(rules, given, "sparkfleet:check_decode:ratio", 0.75)
    check(rules, given, "sparkfleet:check_ttft:ratio", 1.5)

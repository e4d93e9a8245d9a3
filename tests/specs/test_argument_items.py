"""Items of `engine_args` that an engine would refuse after a long staging."""

import json

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.load import parse_deployment


def parsed(*items: str) -> tuple[str, ...]:
    return parse_deployment(
        f"name: x\nmodel: org/name\nengine_args: {json.dumps(items)}", "d.yaml"
    ).engine_args


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (
            ["--max-num-seqs 8"],
            '[0]: found "--max-num-seqs 8", which is one argument. Expected one per item: ["--max-num-seqs", "8"].',
        ),
        (
            ["--seed=1", "--gpu-memory-utilization 0.95"],
            '[1]: found "--gpu-memory-utilization 0.95", which is one argument. Expected one per item:'
            ' ["--gpu-memory-utilization", "0.95"].',
        ),
        (["-max-num-seqs", "8"], '[0]: found "-max-num-seqs". Expected two dashes: "--max-num-seqs".'),
        (
            ["max-num-seqs=8"],
            '[0]: found "max-num-seqs=8", which is no flag and follows none that takes a value.'
            ' Expected "--max-num-seqs=8".',
        ),
        (
            ["--seed=1", "8"],
            '[1]: found "8", which is no flag and follows none that takes a value.'
            ' Expected a flag such as "--max-num-seqs".',
        ),
    ],
)
def test_one_argument_per_item(items: list[str], expected: str) -> None:
    with pytest.raises(SpecError) as error:
        parsed(*items)
    assert error.value.what == f"d.yaml:3: engine_args{expected}"


def test_a_value_that_is_json_stays_whole() -> None:
    with pytest.raises(SpecError, match=r'\["--compilation-config", "\{\\"mode\\": 3\}"\]'):
        parsed('--compilation-config {"mode": 3}')


def test_a_variant_is_named_with_its_line() -> None:
    text = "name: x\nvariants:\n- model: org/a\n- model: org/b\n  engine_args:\n  - --enforce-eager\n  - --seed 1\n"
    with pytest.raises(SpecError) as error:
        parse_deployment(text, "d.yaml")
    assert error.value.what.startswith("d.yaml:7: variants[1].engine_args[1]: found")


@pytest.mark.parametrize(
    "items",
    [
        ["--max-num-seqs", "8"],
        ["--max-num-seqs=8", "-tp", "2", "-n2", "-O3"],
        ['--compilation-config={"pass_config": {"fuse_act_quant": true}}'],
        ["--hf-overrides", '{"rope_theta": 1000000, "x": [1, 2]}'],
        ["--chat-template", "{% for message in messages %} - {{ message }} {% endfor %}"],
        ["--cudagraph-capture-sizes", "1", "2", "4", "--enforce-eager"],
        ["--speculative-config.num_speculative_tokens", "3"],
        ["--lora-modules", "a=/srv/a b", "c=/srv/c"],
        ["--min-p", "-1"],
    ],
)
def test_arguments_as_engines_read_them(items: list[str]) -> None:
    assert parsed(*items) == tuple(items)


def test_what_an_older_release_stored_stays_readable() -> None:
    stored = '{"name": "x", "model": "org/name", "engine_args": ["--max-num-seqs 8"]}'
    assert Deployment.model_validate_json(stored).engine_args == ("--max-num-seqs 8",)

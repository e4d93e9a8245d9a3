"""Code of a checkpoint runs only by its field, and only of a commit; stored deployments of older releases stay readable."""

from __future__ import annotations

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.load import parse_deployment
from sparkfleet.specs.remote_code import code_risks, is_pinned

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def refused(*lines: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_deployment("\n".join(("name: x", *lines)), "d.yaml")
    return str(caught.value)


@pytest.mark.parametrize("model", [f"org/name@{COMMIT}", "/srv/checkpoint"])
def test_it_is_accepted_with_a_model_that_cannot_change(model: str) -> None:
    deployment = parse_deployment(f"name: x\nmodel: {model}\ntrust_remote_code: true")
    assert deployment.resolved()[0].trust_remote_code


@pytest.mark.parametrize("model", ["org/name", "org/name@main", f"org/name@{COMMIT[:-1]}", "org/name@v1.0"])
def test_without_a_commit_it_is_refused_at_the_line_of_the_model_with_what_to_write(model: str) -> None:
    said = refused(f"model: {model}", "trust_remote_code: true")
    assert said.startswith("d.yaml:2: model: `trust_remote_code: true` runs code of org/name")
    assert "`model: org/name@COMMIT`" in said
    assert "git ls-remote https://huggingface.co/org/name HEAD" in said


def test_each_variant_is_checked_by_itself() -> None:
    lines = ["variants:", f"  - model: org/a@{COMMIT}", "    trust_remote_code: true", "  - model: org/b"]
    assert [one.trust_remote_code for one in parse_deployment("\n".join(("name: x", *lines))).resolved()] == [
        True,
        False,
    ]
    assert refused(*lines, "    trust_remote_code: true").startswith("d.yaml:5: variants[1].model: ")
    assert "variants[1].model" in refused(*lines, "trust_remote_code: true"), "set for all of them"


def test_its_draft_needs_a_commit_as_well() -> None:
    lines = [f"model: org/name@{COMMIT}", "trust_remote_code: true"]
    said = refused(*lines, "speculation: {method: eagle3, draft: org/draft}")
    assert said.startswith("d.yaml:4: speculation: ")
    assert "`draft: org/draft@COMMIT`" in said
    both = "\n".join(("name: x", *lines, f"speculation: {{method: eagle3, draft: org/draft@{COMMIT}}}"))
    assert parse_deployment(both).trust_remote_code


@pytest.mark.parametrize(
    "argument",
    [
        "--trust-remote-code",
        "--trust_remote_code",
        "--trust-remote-code=true",
        "--trust",
        "--no-trust-remote-code",
        '--mm-processor-kwargs={"trust_remote_code": true}',
        "--speculative-config.Trust-Remote-Code=1",
    ],
)
@pytest.mark.parametrize("model", ["org/name", f"org/name@{COMMIT}"])
def test_arguments_cannot_set_it_and_the_field_is_named(model: str, argument: str) -> None:
    said = refused(f"model: {model}", "engine: vllm", f"engine_args: ['{argument}']")
    assert said.startswith("d.yaml:4: engine_args: --trust-remote-code runs")
    assert "set `trust_remote_code: true`" in said


@pytest.mark.parametrize("argument", ["--config=/srv/a.yaml", "--extra_llm_api_options=/srv/a.yaml"])
def test_a_file_of_settings_that_nobody_reads_could_set_it(argument: str) -> None:
    said = refused(f"model: org/name@{COMMIT}", f"engine_args: ['{argument}']")
    assert "a file of settings that sparkfleet does not read" in said
    assert parse_deployment(
        f"name: x\nmodel: org/name@{COMMIT}\ntrust_remote_code: true\nengine_args: ['{argument}']"
    )


def test_nor_can_a_variable() -> None:
    said = refused("model: org/name", "env: {SOME_TRUST_REMOTE_CODE: '1'}")
    assert said.startswith("d.yaml:3: env: SOME_TRUST_REMOTE_CODE lets code")


@pytest.mark.parametrize(
    "flag", ["--tokenizer", "--tokenizer_path", "--speculative-config", "--code-revision"]
)
def test_no_other_checkpoint_comes_in_by_an_argument(flag: str) -> None:
    said = refused(f"model: org/name@{COMMIT}", "trust_remote_code: true", f"engine_args: ['{flag}=org/x']")
    assert "lets code of another checkpoint run that is not pinned" in said
    assert parse_deployment(f"name: x\nmodel: org/name\nengine_args: ['{flag}=org/x']")


def test_it_means_nothing_to_a_built_in_model_or_a_custom_workload() -> None:
    assert "builtin:tiny has no code" in refused("model: builtin:tiny", "trust_remote_code: true")
    custom = ["model: org/name", "engine: custom", "command: [a]", "port: 1234", "memory: 1 GiB"]
    assert "a custom workload has its own command" in refused(*custom, "trust_remote_code: true")


def test_arguments_that_only_look_alike_are_left_alone() -> None:
    given = [
        "--tokenizer-mode=auto",
        "--config-format=hf",
        "--",
        "-t",
        "trust",
        "--trust-request-chat-template",
    ]
    quoted = ", ".join(f"'{word}'" for word in given)
    assert parse_deployment(f"name: x\nmodel: org/name\nengine_args: [{quoted}]").engine_args == tuple(given)


def test_what_an_older_release_stored_stays_readable_and_is_still_recognised() -> None:
    stored = '{"name": "x", "model": "org/name", "engine_args": ["--trust-remote-code"]}'
    deployment = Deployment.model_validate_json(stored)
    (risk,) = code_risks(deployment.resolved()[0])
    assert risk.field == "engine_args"


def test_pinned_means_forty_digits() -> None:
    assert is_pinned(f"org/name@{COMMIT}")
    assert not is_pinned(f"org/name@{COMMIT.upper()}"), "the Hub gives commits in small letters"
    assert not is_pinned(f"org/name@{COMMIT}0")

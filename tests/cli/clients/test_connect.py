"""`sparkfleet connect` over a fleet's status."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from open_client import OpenClient
from typer.testing import CliRunner

from sparkfleet.cli.clients import connect as verb
from sparkfleet.cli.verbs import VERBS
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import ControlError, SpecError
from sparkfleet.gateway.listening import GatewayEntry


class Fleet(OpenClient):
    """A session and its client, of a fleet with one deployment."""

    inventory = SimpleNamespace(head="spark1")
    address = HeadAddress(ray="", api="", gateway_host="127.0.0.1", gateway_port=8000)

    engine = "custom"
    model = "org/tiny"
    more: ClassVar[dict[str, object]] = {}
    """Further fields of the deployment."""

    async def fleet(self) -> Any:
        candidate = SimpleNamespace(
            context=8192, engine=self.engine, engine_args=(), model=self.model, engine_version="0.32.0"
        )
        group = SimpleNamespace(choice=SimpleNamespace(candidate=candidate), family="llama", vision=False)
        spec = json.dumps({"name": "tiny", "model": "org/tiny", "aliases": ["gpt-4o"], **self.more})
        plan = SimpleNamespace(groups=(group,))
        one = SimpleNamespace(name="tiny", spec=spec, plan=plan, on_demand="on_demand" in self.more)
        return SimpleNamespace(deployments=(one,), certificate=None)


@pytest.fixture(autouse=True)
def _fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "open_session", lambda _: Fleet())


def invoke(*arguments: str) -> str:
    return run_verb(*arguments).stdout


def run_verb(*arguments: str) -> Any:
    import typer

    app = typer.Typer()
    app.command()(verb.connect)
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_the_configuration_is_printed_for_names_and_aliases() -> None:
    for name in ("tiny", "gpt-4o"):
        shown = invoke("opencode", name, "--json")
        assert json.loads(shown)["client"] == "opencode"
        assert f"sparkfleet/{name}" in json.loads(shown)["text"]
    assert json.loads(invoke("opencode", "tiny"))["model"] == "sparkfleet/tiny"
    assert "http://box:80/v1" in invoke("aider", "tiny", "--url", "http://box:80/")


@pytest.mark.parametrize("client", ["codex", "aider"])
@pytest.mark.parametrize("engine", ["vllm", "custom"])
def test_an_agent_is_warned_of_a_model_without_tools(
    client: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM without a parser refuses a request with tools; of a custom engine nothing is known, and Aider sends none."""
    monkeypatch.setattr(Fleet, "engine", engine)
    notes: list[str] = []
    monkeypatch.setattr(verb.errors, "print", lambda words, **_: notes.append(words))
    invoke(client, "tiny")
    warned = any('"--tool-call-parser"' in note for note in notes)
    assert warned == (engine == "vllm" and client == "codex")


@pytest.mark.parametrize(
    ("engine", "model", "only"),
    [
        ("vllm", "openai/gpt-oss-120b", True),
        ("sglang", "openai/gpt-oss-120b", False),
        ("llama.cpp", "ggml-org/gpt-oss-120b-GGUF", False),
        ("vllm", "Qwen/Qwen3.6-27B", False),
    ],
)
def test_codex_gets_settings_of_its_own_for_gpt_oss_on_vllm(
    engine: str, model: str, only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fleet, "engine", engine)
    monkeypatch.setattr(Fleet, "model", model)
    assert ('web_search = "disabled"' in invoke("codex", "tiny")) == only


@pytest.mark.parametrize(("client", "warned"), [("claude-code", True), ("continue", False), ("aider", False)])
def test_an_agent_is_warned_of_a_context_that_its_own_instructions_fill(
    client: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(verb.errors, "print", lambda words, **_: notes.append(words))
    invoke(client, "tiny")
    words = "has a context of 8192 tokens, and claude-code sends about 20,000"
    assert any(words in note and "`context: 65536`" in note for note in notes) == warned


def test_further_addresses_of_the_endpoint_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = GatewayEntry(node="spark2", host="0.0.0.0", name="10.0.0.2", target="10.0.0.1")
    monkeypatch.setattr(Fleet, "address", Fleet.address.model_copy(update={"entries": (entry,)}))
    notes: list[str] = []
    monkeypatch.setattr(verb.errors, "print", lambda words, **_: notes.append(words))
    invoke("aider", "tiny")
    assert notes[-1].endswith("further addresses (`--url`): http://10.0.0.2:8000/v1")


def test_an_unknown_deployment_is_named() -> None:
    with pytest.raises(ControlError, match='no deployment "huge"'):
        invoke("aider", "huge")


def test_the_verb_is_listed() -> None:
    assert VERBS["connect"].load() is verb.connect


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(SpecError, match='--url "box" is no address'):
        invoke("aider", "tiny", "--url", "box")


def test_a_deployment_that_lists_keys_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key made by `keys create` may not use it, which was the command that was printed."""
    monkeypatch.setattr(Fleet, "more", {"keys": ["laptop", "desk"]})
    monkeypatch.setattr(verb.errors, "width", 400)
    shown = run_verb("openai", "tiny").stderr
    assert "SPARKFLEET_API_KEY: only laptop, desk may use tiny. `sparkfleet keys create NAME`" in shown
    assert "`keys` in the deployment's file, then `sparkfleet apply FILE`" in shown


def test_an_endpoint_on_loopback_has_the_command_that_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sparkfleet apply` without a file is an error."""
    monkeypatch.setattr(verb.errors, "width", 400)
    assert "opens it to the network, then `sparkfleet up`." in run_verb("openai", "tiny").stderr


def test_of_what_is_on_demand_the_wait_and_the_command_that_spares_it_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verb.errors, "width", 400)
    assert "on demand" not in run_verb("openai", "tiny").stderr
    monkeypatch.setattr(Fleet, "more", {"on_demand": True})
    assert "`sparkfleet load tiny` starts it before." in run_verb("openai", "tiny").stderr

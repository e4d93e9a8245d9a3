"""Configurations of clients: readable by their formats, and without a key."""

from __future__ import annotations

import ast
import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkfleet.errors import SpecError
from sparkfleet.fleet.clients.connect import CLIENTS, KEY, Endpoint, setup_of

ENDPOINT = Endpoint(url="http://spark1:8000/v1", model="qwen3.5-35b", context=65536, vision=True)


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_gets_the_model_and_the_address_and_no_key(client: str) -> None:
    setup = setup_of(client, ENDPOINT)
    assert setup.place
    assert "qwen3.5-35b" in setup.text or client == "open-webui"  # which lists the models itself
    assert "http://spark1:8000" in setup.text
    assert "sk-sf-" not in setup.text + setup.then
    assert KEY in setup.text + setup.then or client == "llm"


def test_the_document_names_every_client() -> None:
    assert f"# {', '.join(CLIENTS)}\n" in (Path(__file__).parents[3] / "docs" / "clients.md").read_text()


def test_claude_code_gets_the_root_and_keeps_its_prefix() -> None:
    env = json.loads(setup_of("claude-code", ENDPOINT).text)["env"]
    assert env["ANTHROPIC_BASE_URL"] == "http://spark1:8000"
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert {value for name, value in env.items() if name.endswith("_MODEL")} == {"qwen3.5-35b"}


@pytest.mark.parametrize(
    ("context", "answer", "compacts"),
    [(8192, "2048", False), (32768, "8192", False), (65536, "8192", True), (262144, "32000", True)],
)
def test_claude_code_gets_the_context_and_room_for_its_own_prompt(
    context: int, answer: str, compacts: bool
) -> None:
    """With the window set on 32,768 tokens it ended with "Prompt is too long" before its second request."""
    env = json.loads(setup_of("claude-code", ENDPOINT.model_copy(update={"context": context})).text)["env"]
    assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(context)
    assert env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == answer
    assert env.get("CLAUDE_CODE_AUTO_COMPACT_WINDOW") == (str(context) if compacts else None)
    unknown = json.loads(setup_of("claude-code", ENDPOINT.model_copy(update={"context": None})).text)["env"]
    assert not any("TOKENS" in name or "WINDOW" in name for name in unknown)


@pytest.mark.parametrize("context", [None, 65536])
def test_codex_gets_its_provider_and_the_context(context: int | None) -> None:
    config = tomllib.loads(setup_of("codex", ENDPOINT.model_copy(update={"context": context})).text)
    assert (config["model"], config.get("model_context_window")) == ("qwen3.5-35b", context)
    provider = config["model_providers"][config["model_provider"]]
    assert (provider["base_url"], provider["env_key"]) == ("http://spark1:8000/v1", KEY)
    assert provider["wire_api"] == "responses", "the other one was removed from Codex"


def test_clients_that_end_a_silent_stream_wait_for_a_start_on_demand() -> None:
    waits = ENDPOINT.model_copy(update={"on_demand": True})
    env = json.loads(setup_of("claude-code", waits).text)["env"]
    assert env["CLAUDE_STREAM_IDLE_TIMEOUT_MS"] == "1800000"
    codex = tomllib.loads(setup_of("codex", waits).text)
    assert codex["model_providers"][codex["model_provider"]]["stream_idle_timeout_ms"] == 1_800_000
    for client in ("claude-code", "codex"):
        assert "imeout" not in setup_of(client, ENDPOINT).text.lower().replace("TIMEOUT", "timeout")


@pytest.mark.parametrize("on_demand", [False, True])
def test_no_client_ends_an_answer_for_its_length(on_demand: bool) -> None:
    """OpenCode and Open WebUI ended an answer after 300 s while its tokens arrived, 6,000 at 20 tok/s; OpenClaw gave up
    after 120 s of a long prompt."""
    endpoint = ENDPOINT.model_copy(update={"on_demand": on_demand})
    code = json.loads(setup_of("opencode", endpoint).text)
    assert code["provider"]["sparkfleet"]["options"]["timeout"] is False
    assert " -e AIOHTTP_CLIENT_TIMEOUT= " in setup_of("open-webui", endpoint).text
    claw = json.loads(setup_of("openclaw", endpoint).text)
    assert claw["models"]["providers"]["sparkfleet"]["timeoutSeconds"] == 1800


@pytest.mark.parametrize("functions_only", [False, True])
def test_codex_sends_functions_only_to_an_engine_that_refuses_other_tools(functions_only: bool) -> None:
    """Codex sends its web search and its sub-agents with each request, and vLLM answers 400 to both for gpt-oss."""
    setup = setup_of(
        "codex", ENDPOINT.model_copy(update={"functions_only": functions_only, "on_demand": True})
    )
    config = tomllib.loads(setup.text)
    assert (config.get("web_search") == "disabled") == functions_only
    assert (config.get("agents") == {"enabled": False}) == functions_only
    assert config["model_providers"]["sparkfleet"]["stream_idle_timeout_ms"] == 1_800_000
    assert ("an MCP server" in setup.then) == functions_only


def test_a_model_with_vision_gets_images() -> None:
    """OpenCode replaces an image by "this model does not support image input" unless its configuration has it."""

    def model(vision: bool) -> dict[str, Any]:
        code = json.loads(setup_of("opencode", ENDPOINT.model_copy(update={"vision": vision})).text)
        found: dict[str, Any] = code["provider"]["sparkfleet"]["models"]["qwen3.5-35b"]
        return found

    assert model(True)["modalities"]["input"] == ["text", "image"]
    assert "modalities" not in model(False)


@pytest.mark.parametrize(
    ("tools", "vision", "able"),
    [(True, True, ["tool_use", "image_input"]), (None, False, ["tool_use"]), (False, False, None)],
)
def test_continue_gets_what_the_model_can(tools: bool | None, vision: bool, able: list[str] | None) -> None:
    endpoint = ENDPOINT.model_copy(update={"tools": tools, "vision": vision})
    (model,) = yaml.safe_load(setup_of("continue", endpoint).text)["models"]
    assert model.get("capabilities") == able


def test_aider_gets_the_context() -> None:
    words = shlex.split(setup_of("aider", ENDPOINT).text)
    assert json.loads(words[words.index("echo") + 1])["openai/qwen3.5-35b"]["max_input_tokens"] == 65536
    assert "echo" not in setup_of("aider", ENDPOINT.model_copy(update={"context": None})).text


@pytest.mark.parametrize("context", [None, 4096, 65536])
def test_json_and_yaml_are_read(context: int | None) -> None:
    endpoint = ENDPOINT.model_copy(update={"context": context})
    claw = json.loads(setup_of("openclaw", endpoint).text)
    (model,) = claw["models"]["providers"]["sparkfleet"]["models"]
    assert model["maxTokens"] < model["contextWindow"] == (context or 32768)
    assert claw["agents"]["defaults"]["model"]["primary"] == "sparkfleet/qwen3.5-35b"
    code = json.loads(setup_of("opencode", endpoint).text)
    assert code["provider"]["sparkfleet"]["options"]["apiKey"] == "{env:SPARKFLEET_API_KEY}"
    assert ("limit" in code["provider"]["sparkfleet"]["models"]["qwen3.5-35b"]) == (context is not None)
    (entry,) = yaml.safe_load(setup_of("continue", endpoint).text)["models"]
    assert entry["apiBase"] == "http://spark1:8000/v1"
    assert entry.get("defaultCompletionOptions", {}).get("contextLength") == context
    (line,) = yaml.safe_load(setup_of("llm", endpoint).text)
    assert (line["model_name"], line["api_key_name"]) == ("qwen3.5-35b", "sparkfleet")


def test_programs_parse() -> None:
    ast.parse(setup_of("langchain", ENDPOINT).text)
    ast.parse(setup_of("openai", ENDPOINT).text.partition("# Python\n")[2])
    for client in ("aider", "cline", "open-webui", "qwen-code"):
        assert shlex.split(setup_of(client, ENDPOINT).text)


async def test_the_openai_program_of_the_setup_works(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import asyncio

    from sparkfleet.engines.fake import FakeEngine

    async with FakeEngine(model="tiny") as engine:
        endpoint = Endpoint(url=engine.url + "/v1", model="tiny")
        program = setup_of("openai", endpoint).text.partition("# Python\n")[2]
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        await asyncio.to_thread(exec, program, {})
    assert capsys.readouterr().out.strip()


def test_an_unknown_client_is_named() -> None:
    with pytest.raises(SpecError, match=r'no client "emacs"(?s:.*)`sparkfleet connect openai NAME`'):
        setup_of("emacs", ENDPOINT)


def test_the_authority_of_a_generated_certificate_is_printed_and_nothing_else():
    endpoint = Endpoint(
        url="https://10.0.0.1:8000/v1", model="tiny", authority="-----BEGIN CERTIFICATE-----\nAB\n"
    )
    setup = setup_of("ca", endpoint)
    assert setup.text == "-----BEGIN CERTIFICATE-----\nAB"
    assert "SSL_CERT_FILE" in setup.then
    with pytest.raises(SpecError, match="no certificate of the fleet's own authority"):
        setup_of("ca", Endpoint(url="http://10.0.0.1:8000/v1", model="tiny"))


def test_a_client_and_a_name_in_the_wrong_order_are_named():
    with pytest.raises(SpecError, match=r'"tiny" is no client, and "codex" is one') as refused:
        setup_of("tiny", Endpoint(url="", model="codex"))
    assert refused.value.do == "The client comes first: `sparkfleet connect codex tiny`."

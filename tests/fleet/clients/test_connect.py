"""Configurations of clients: readable by their formats, and without a key."""

from __future__ import annotations

import ast
import json
import shlex
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
    for client in ("aider", "open-webui"):
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

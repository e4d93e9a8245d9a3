"""Configuration of clients for the fleet's endpoint. Pure.

No text contains a key: each reads it from `SPARKFLEET_API_KEY`, or from where its client stores keys. Sources, read in
November 2026: Claude Code's settings and LLM gateways (docs.anthropic.com), docs.openclaw.ai/providers/vllm,
opencode.ai/docs/providers, aider.chat/docs/llms/openai-compat, docs.continue.dev/reference, the environment variables of
docs.openwebui.com, and "OpenAI-compatible models" of llm.datasette.io. Run through a gateway, with a scripted
engine that calls tools, in November 2026: Claude Code 2.1.197 and Codex 0.171.0 (both with a conversation that outgrew the
context, too), OpenCode 1.18.33, Continue's cn 1.5.47, OpenClaw 2026.9.6, Qwen Code 0.15.10, Cline 3.0.65, and without tools
Aider 0.86.2.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from sparkfleet.errors import SpecError
from sparkfleet.specs.fields import quote
from sparkfleet.values import Value

KEY = "SPARKFLEET_API_KEY"
PROVIDER = "sparkfleet"
AUTHORITY = "ca"
"""In place of a client: the certificate of the authority that all of them have to know."""
_ANSWER = 8192
"""Tokens of an answer that clients plan for, which have to be given a number."""
_CONTEXT = 32768
"""Context that is given to clients which need one, if that of the model is not known."""
_CLAUDE_ANSWER = 32_000
"""Tokens of an answer that Claude Code reserves for a model that it does not know."""
_CLAUDE_BUFFER = 13_000
"""Tokens that it keeps free beside them (at most 20,000 of those count): it compacts a conversation before."""
_CLAUDE_LEAST = 30_000
"""Tokens at which it may compact: its own prompt has 19,000 to 22,000. Below that it gives up at its first request."""
_FUNCTIONS_ONLY = (
    " vLLM takes no tools of gpt-oss but functions: the web search and sub-agents are off above, and with an MCP server each"
    " request gets a 400 (vllm-project/vllm#49493)."
)
_START_MS = 1_800_000
"""Time without an event after which a client may end a stream that waits for the start of its model: as long as the gateway
lets it wait, for Claude Code (2.1.84 and later: 90 s if it watches streams) and Codex (300 s), which count events only."""


class Endpoint(Value):
    """Model and address that a client is to use."""

    url: str
    """Base URL with `/v1`."""
    model: str
    context: int | None = None
    """Tokens of prompt and answer; None: not known."""
    vision: bool = False
    tools: bool | None = None
    """True if calls of tools are parsed; None: not known."""
    authority: str = ""
    """PEM certificate of the fleet's own authority, if that made the endpoint's; "" otherwise."""
    keys: tuple[str, ...] = ()
    """Names of the API keys that may use the model; (): all."""
    functions_only: bool = False
    """True if its engine refuses a request to /v1/responses that has other tools than functions."""
    on_demand: bool = False
    """True if a request may wait for the start of its model."""

    @property
    def root(self) -> str:
        """Base URL without `/v1`, as Anthropic's clients expect it."""
        return self.url.removesuffix("/v1")


class ClientSetup(Value):
    """Configuration of one client."""

    place: str
    """File or shell that it belongs in."""
    text: str
    then: str = ""
    """Command to run afterwards, or a note."""


def setup_of(client: str, endpoint: Endpoint) -> ClientSetup:
    """The configuration of a client. Raises SpecError if the client is not known."""
    make = _ca if client == AUTHORITY else CLIENTS.get(client)
    if make is None and endpoint.model in CLIENTS:
        raise SpecError(
            f"{quote(client)} is no client, and {quote(endpoint.model)} is one.",
            do=f"The client comes first: `sparkfleet connect {endpoint.model} {client}`.",
        )
    if make is None:
        raise SpecError(
            f"There is no client {quote(client)}.",
            do=f"Expected one of {', '.join(CLIENTS)}. `sparkfleet connect openai NAME` has what any other one needs.",
        )
    return make(endpoint)


def _openai(endpoint: Endpoint) -> ClientSetup:
    code = "\n".join(
        (
            f'export OPENAI_BASE_URL="{endpoint.url}"',
            f'export OPENAI_API_KEY="${KEY}"',
            "",
            "# Python",
            "from openai import OpenAI",
            "",
            "client = OpenAI()",
            "answer = client.chat.completions.create(",
            f'    model="{endpoint.model}", messages=[{{"role": "user", "content": "Hello"}}]',
            ")",
            "print(answer.choices[0].message.content)",
        )
    )
    return ClientSetup(place="the shell, and a program", text=code)


def _claude_code(endpoint: Endpoint) -> ClientSetup:
    env = {
        "ANTHROPIC_BASE_URL": endpoint.root,
        "ANTHROPIC_MODEL": endpoint.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": endpoint.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": endpoint.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": endpoint.model,
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **_claude_context(endpoint.context),
    }
    if endpoint.on_demand:
        env["CLAUDE_STREAM_IDLE_TIMEOUT_MS"] = str(_START_MS)
    return ClientSetup(
        place="~/.claude/settings.json",
        text=_json({"env": env}),
        then=f'Start it with `ANTHROPIC_AUTH_TOKEN="${KEY}" claude`, without ANTHROPIC_API_KEY in the environment. Without'
        " CLAUDE_CODE_ATTRIBUTION_HEADER=0 a line that changes with each request opens the prompt, and nothing of it is"
        " found in the KV cache.",
    )


def _claude_context(context: int | None) -> dict[str, str]:
    """Settings by which Claude Code compacts a conversation in time: for an unknown model it assumes 200,000 tokens."""
    if context is None:
        return {}
    answer = min(_CLAUDE_ANSWER, max(_ANSWER, context // 8), context // 4)
    settings = {
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(answer),
    }
    if context - answer - _CLAUDE_BUFFER >= _CLAUDE_LEAST:
        settings["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(context)
    return settings


def _codex(endpoint: Endpoint) -> ClientSetup:
    window = [] if endpoint.context is None else [f"model_context_window = {endpoint.context}"]
    lines = [
        f"model = {_quoted(endpoint.model)}",
        f"model_provider = {_quoted(PROVIDER)}",
        *window,
        *(['web_search = "disabled"'] if endpoint.functions_only else []),
        "",
        f"[model_providers.{PROVIDER}]",
        f"name = {_quoted(PROVIDER)}",
        f"base_url = {_quoted(endpoint.url)}",
        f"env_key = {_quoted(KEY)}",
        'wire_api = "responses"',
        *([f"stream_idle_timeout_ms = {_START_MS}"] if endpoint.on_demand else []),
        *(["", "[agents]", "enabled = false"] if endpoint.functions_only else []),
    ]
    then = (
        "Codex calls tools over /v1/responses, which vLLM answers. It warns that it has no metadata of the model: it"
        " compacts by the context above, without which it assumes 272,000 tokens."
    )
    only = _FUNCTIONS_ONLY if endpoint.functions_only else ""
    return ClientSetup(place="~/.codex/config.toml", text="\n".join(lines), then=then + only)


def _cline(endpoint: Endpoint) -> ClientSetup:
    model, url = shlex.quote(endpoint.model), shlex.quote(endpoint.url)
    return ClientSetup(
        place="the shell",
        text=f'cline auth --provider openai --apikey "${KEY}" --modelid {model} --baseurl {url}',
        then="In an editor: Settings, API Provider, OpenAI Compatible, with the same address, key and model"
        + (f", and a context window of {endpoint.context}." if endpoint.context else "."),
    )


def _qwen_code(endpoint: Endpoint) -> ClientSetup:
    lines = (
        f"export OPENAI_BASE_URL={shlex.quote(endpoint.url)}",
        f'export OPENAI_API_KEY="${KEY}"',
        f"export OPENAI_MODEL={shlex.quote(endpoint.model)}",
        "qwen --auth-type openai",
    )
    size = _json({"model": {"generationConfig": {"contextWindowSize": endpoint.context}}})
    return ClientSetup(
        place="the shell",
        text="\n".join(lines),
        then=f"Its context, in ~/.qwen/settings.json: {' '.join(size.split())}" if endpoint.context else "",
    )


def _open_webui(endpoint: Endpoint) -> ClientSetup:
    variables = f'-e OPENAI_API_BASE_URL={shlex.quote(endpoint.url)} -e OPENAI_API_KEY="${KEY}" -e ENABLE_OLLAMA_API=false'
    variables += " -e AIOHTTP_CLIENT_TIMEOUT="  # no limit, instead of 300 s: 6,000 tokens at 20 tok/s
    return ClientSetup(
        place="the shell",
        text=f"docker run -d -p 127.0.0.1:3000:8080 {variables} \\\n"
        "  -v open-webui:/app/backend/data --name open-webui ghcr.io/open-webui/open-webui:main",
        then="From inside a container 127.0.0.1 is the container: use an address of the head. An instance that has been"
        " started before has its own settings: Admin Settings, Connections, OpenAI API.",
    )


def _openclaw(endpoint: Endpoint) -> ClientSetup:
    context = endpoint.context or _CONTEXT
    model = {
        "id": endpoint.model,
        "name": endpoint.model,
        "reasoning": False,
        "input": ["text", "image"] if endpoint.vision else ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": context,
        "maxTokens": min(_ANSWER, context // 2),
    }
    provider = {
        "baseUrl": endpoint.url,
        "apiKey": f"${{{KEY}}}",
        "api": "openai-completions",
        "timeoutSeconds": _START_MS
        // 1000,  # otherwise 120 to 300 s without an event, which a long prompt may take
        "models": [model],
    }
    return ClientSetup(
        place="~/.openclaw/openclaw.json",
        text=_json(
            {
                "models": {"providers": {PROVIDER: provider}},
                "agents": {"defaults": {"model": {"primary": f"{PROVIDER}/{endpoint.model}"}}},
            }
        ),
    )


def _opencode(endpoint: Endpoint) -> ClientSetup:
    model: dict[str, Any] = {"name": endpoint.model}
    if endpoint.context is not None:
        model["limit"] = {"context": endpoint.context, "output": min(_ANSWER, endpoint.context // 2)}
    if endpoint.vision:  # without these it replaces an image by an error
        model |= {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
    provider: dict[str, Any] = {
        "npm": "@ai-sdk/openai-compatible",
        "name": PROVIDER,
        # By default it ends a whole answer after 300 s, also one whose tokens arrive, and asks again.
        "options": {"baseURL": endpoint.url, "apiKey": f"{{env:{KEY}}}", "timeout": False},
        "models": {endpoint.model: model},
    }
    return ClientSetup(
        place="opencode.json of a project, or ~/.config/opencode/opencode.json",
        text=_json(
            {
                "$schema": "https://opencode.ai/config.json",
                "provider": {PROVIDER: provider},
                "model": f"{PROVIDER}/{endpoint.model}",
            }
        ),
    )


def _aider(endpoint: Endpoint) -> ClientSetup:
    name = f"openai/{endpoint.model}"
    lines = [
        f"export OPENAI_API_BASE={shlex.quote(endpoint.url)}",
        f'export OPENAI_API_KEY="${KEY}"',
    ]
    start = f"aider --model {shlex.quote(name)}"
    if endpoint.context is not None:
        sizes = {
            "max_input_tokens": endpoint.context,
            "max_output_tokens": min(_ANSWER, endpoint.context // 2),
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        }
        metadata = shlex.quote(json.dumps({name: sizes}))
        lines.append(f"echo {metadata} > ~/.aider.sparkfleet.json")
        start += " --model-metadata-file ~/.aider.sparkfleet.json"
    return ClientSetup(place="the shell", text="\n".join((*lines, start)))


def _continue(endpoint: Endpoint) -> ClientSetup:
    lines = [
        "name: sparkfleet",
        "version: 0.0.1",
        "schema: v1",
        "models:",
        f"  - name: {_quoted(endpoint.model)}",
        "    provider: openai",
        f"    model: {_quoted(endpoint.model)}",
        f"    apiBase: {_quoted(endpoint.url)}",
        f"    apiKey: ${{{{ secrets.{KEY} }}}}",
        "    roles: [chat, edit, apply]",
    ]
    able = [] if endpoint.tools is False else ["tool_use"]
    if able := able + ["image_input"] * endpoint.vision:  # it knows those of published names only
        lines.append(f"    capabilities: [{', '.join(able)}]")
    if endpoint.context is not None:
        lines += ["    defaultCompletionOptions:", f"      contextLength: {endpoint.context}"]
    return ClientSetup(
        place="~/.continue/config.yaml",
        text="\n".join(lines),
        then=f"Put the key into ~/.continue/.env, as a line {KEY}=….",
    )


def _langchain(endpoint: Endpoint) -> ClientSetup:
    lines = (
        "import os",
        "",
        "from langchain_openai import ChatOpenAI",
        "",
        "model = ChatOpenAI(",
        f'    model="{endpoint.model}", base_url="{endpoint.url}", api_key=os.environ["{KEY}"]',
        ")",
        'print(model.invoke("Hello").content)',
    )
    return ClientSetup(place="a program (pip install langchain-openai)", text="\n".join(lines))


def _llm(endpoint: Endpoint) -> ClientSetup:
    lines = (
        f"- model_id: {_quoted(endpoint.model)}",
        f"  model_name: {_quoted(endpoint.model)}",
        f"  api_base: {_quoted(endpoint.url)}",
        f"  api_key_name: {PROVIDER}",
        "  supports_tools: true",
    )
    return ClientSetup(
        place='extra-openai-models.yaml in `dirname "$(llm logs path)"`',
        text="\n".join(lines),
        then=f"Store the key with `llm keys set {PROVIDER}`, then run `llm -m {shlex.quote(endpoint.model)} Hello`.",
    )


def _ca(endpoint: Endpoint) -> ClientSetup:
    if not endpoint.authority:
        raise SpecError(
            "The endpoint has no certificate of the fleet's own authority.",
            do="`gateway: {tls: generated}` in the inventory makes one; clients know that of a given one.",
        )
    return ClientSetup(
        place="sparkfleet-ca.pem on the client's machine",
        text=endpoint.authority.rstrip(),
        then="Python and Codex: SSL_CERT_FILE=sparkfleet-ca.pem; Node.js (Claude Code, OpenCode, Continue): "
        "NODE_EXTRA_CA_CERTS=sparkfleet-ca.pem; curl: --cacert sparkfleet-ca.pem.",
    )


CLIENTS: Mapping[str, Callable[[Endpoint], ClientSetup]] = {
    "openai": _openai,
    "claude-code": _claude_code,
    "codex": _codex,
    "open-webui": _open_webui,
    "openclaw": _openclaw,
    "opencode": _opencode,
    "aider": _aider,
    "continue": _continue,
    "cline": _cline,
    "qwen-code": _qwen_code,
    "langchain": _langchain,
    "llm": _llm,
}


AGENTS = frozenset(("claude-code", "codex", "openclaw", "opencode", "cline", "qwen-code"))
"""Clients that can do nothing with a model whose calls of tools are not parsed."""
OWN_TOKENS = {
    "claude-code": 20_000,
    "qwen-code": 20_000,
    "openclaw": 14_000,
    "codex": 10_000,
    "opencode": 8_000,
    "cline": 5_500,
    "continue": 2_400,
}
"""Tokens of instructions and tools that each sends with every request, at four characters per token: counted in what the
releases above sent to a scripted engine."""


def _json(value: object) -> str:
    return json.dumps(value, indent=2)


def _quoted(text: str) -> str:
    """A YAML scalar; JSON's strings are some."""
    return json.dumps(text)

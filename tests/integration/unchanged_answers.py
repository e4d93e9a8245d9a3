"""Requests whose answers through the gateway are held against the engine asked directly, and how the two are compared."""

import base64
import json
import re
import struct
import zlib
from typing import NamedTuple

import httpx

OWN = re.compile(rb'"(id|created|created_at|completed_at|item_id|call_id|request_id)":("[^"]*"|[0-9.]+|null)')
"""Fields that differ between two equal requests."""
MESSAGES = [{"role": "user", "content": "What is a rail?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"node": {"type": "string", "maxLength": 8}},
            "required": ["node"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"rails": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["rails"],
    "additionalProperties": False,
}
CHAT = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0}


def picture(size=16):
    """A PNG of one grey, as a `data:` URL."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * size) * size)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


IMAGE = {"type": "image_url", "image_url": {"url": picture()}}
REQUESTS = {
    "words": ("/v1/chat/completions", CHAT),
    "logprobs": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 3}),
    "three answers": ("/v1/chat/completions", {**CHAT, "n": 3, "temperature": 1, "seed": 7}),
    "a named tool": (
        "/v1/chat/completions",
        {
            **CHAT,
            "max_tokens": 60,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
        },
    ),
    "structured output": (
        "/v1/chat/completions",
        {
            **CHAT,
            "response_format": {"type": "json_schema", "json_schema": {"name": "rails", "schema": SCHEMA}},
        },
    ),
    "a stop word": ("/v1/chat/completions", {**CHAT, "stop": [" a"]}),
    "a completion": ("/v1/completions", {"prompt": "The DGX Spark", "max_tokens": 16, "temperature": 0}),
    # One prompt: the last digits of two depend on whether the engine computes them in one batch.
    "logprobs of a prompt": (
        "/v1/completions",
        {"prompt": "One Spark", "max_tokens": 4, "temperature": 0, "logprobs": 2, "echo": True},
    ),
    "two prompts": ("/v1/completions", {"prompt": ["One", "Two"], "max_tokens": 4, "temperature": 0}),
    "a response": (
        "/v1/responses",
        {"input": "What is a rail?", "max_output_tokens": 16, "temperature": 0, "store": False},
    ),
    "a message": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 16, "temperature": 0}),
    "an image": (
        "/v1/chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "Look:"}, IMAGE]}]},
    ),
}

_AT_THE_END = ("finish_reason", "stop_reason")
"""Null in each event but the last of a choice."""


class Side(NamedTuple):
    """An address that answers requests, without `/v1`, and the token that it takes; "" for none."""

    url: str
    token: str


def answer(side, path, body):
    """(status, content type, body) of one request."""
    headers = {"authorization": f"Bearer {side.token}"} if side.token else {}
    found = httpx.post(side.url + path, json=body, headers=headers, timeout=120)
    return found.status_code, found.headers["content-type"], found.content


def answers_of_both(engine, gateway, path, body):
    """Answers of the engine and of the gateway to the same request; each the second time, from a warm cache."""
    for _ in range(2):
        direct, through = answer(engine, path, body), answer(gateway, path, body)
    return direct, through


def without_own(body):
    """The bytes of an answer, with 0 in place of ids and times."""
    return OWN.sub(rb'"\1":0', body)


def joined(stream):
    """All fields of a stream's events by their path: texts and lists joined, each other value once for each change."""
    found = {}
    for line in without_own(stream).splitlines():
        if line.startswith(b"data: {"):
            collect(json.loads(line.removeprefix(b"data: ")), (), found)
        elif line not in (b"", b":"):
            values = found.setdefault(("line",), [])
            if line not in values:
                values.append(line)
    return found


def collect(value, path, found):
    if isinstance(value, dict):
        for key, one in value.items():
            collect(one, (*path, key), found)
    elif isinstance(value, list) and path[-1] in ("choices", "tool_calls"):
        for one in value:
            collect(one, (*path, one["index"]), found)
    elif isinstance(value, str) and path[-1] in ("content", "text", "delta", "arguments", "partial_json"):
        joint = (*path, "joined")  # the field itself may be null in other events
        found[joint] = found.get(joint, "") + value
    elif isinstance(value, list):
        found[path] = found.get(path, []) + value
    elif path[-1] == "sequence_number" or (value is None and path[-1] in _AT_THE_END):
        pass  # how many events there are depends on the reader, and so whether any of them is before the last
    else:
        values = found.setdefault(path, [])
        if value not in values:
            values.append(value)

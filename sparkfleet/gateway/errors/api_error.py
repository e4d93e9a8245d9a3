"""The form of an error that the gateway itself returns, in the API of the client.

OpenAI's clients expect `{"error": {message, type, param, code}}`; Anthropic's, on `/v1/messages`, expect
`{"type": "error", "error": {type, message}}`.
"""

from __future__ import annotations

import json
from typing import Literal

from sparkfleet.errors import SparkfleetError

Dialect = Literal["openai", "anthropic"]

PROMPT_TOO_LONG = "The prompt is too long"
"""Words of Anthropic's own error, in any case of letters. Claude Code (2.1.197) compacts a conversation that gets an error
with them, and gives one up that gets any other 400: its `/compact` sends the same prompt and fails with it."""

_LONGEST_NAME = 120

_KINDS = {
    401: "unauthorised",
    403: "forbidden",
    413: "too_large",
    429: "limited",
    431: "too_large",
    500: "internal",
}

_OPENAI_TYPES = {403: "permission_error", 429: "rate_limit_error"}

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(SparkfleetError):
    """A request that the gateway answers itself, with an error.

    Args:
        code: machine-readable reason, in the answer's `code`.
        kind: label in `sparkfleet_errors_total`; "": that of the status.
        param: the wrong field of the request, if it is one.
    """

    def __init__(
        self,
        what: str,
        *,
        status: int,
        code: str,
        kind: str = "",
        param: str | None = None,
        means: str = "",
        do: str = "",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(what, means=means, do=do)
        self.status = status
        self.code = code
        self.kind = kind or _KINDS.get(status, "bad_request")
        self.param = param
        self.headers = headers

    def body(self, dialect: Dialect) -> bytes:
        """The answer's JSON."""
        return error_json(
            " ".join(str(self).splitlines()), self.status, code=self.code, param=self.param, dialect=dialect
        )

    def http_answer(self) -> bytes:
        """The whole answer, for a connection that ends with it, in OpenAI's form: no request has been read."""
        body = self.body("openai")
        fields = "".join(f"{name.decode()}: {value.decode()}\r\n" for name, value in self.headers)
        head = (
            f"HTTP/1.1 {self.status} Refused\r\ncontent-type: application/json\r\n{fields}"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + body


def error_json(
    message: str, status: int, *, code: str | int, dialect: Dialect, param: str | None = None, kind: str = ""
) -> bytes:
    """An error object in the form of `dialect`, ASCII only. `kind`: OpenAI's `type`, by the status if ""."""
    if dialect == "anthropic":
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    kind = kind or _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def dialect_of(path: str) -> Dialect:
    """API of the clients of `path`."""
    return "anthropic" if path == "/v1/messages" or path.startswith("/v1/messages/") else "openai"


def later(
    what: str, seconds: int, *, code: str, kind: str = "", headers: tuple[tuple[bytes, bytes], ...] = ()
) -> ApiError:
    """503: what is not possible now may be in `seconds`."""
    return ApiError(
        what,
        do=f"Try again in {seconds} s.",
        status=503,
        code=code,
        kind=kind or code,
        headers=((b"retry-after", str(seconds).encode()), *headers),
    )


def shortened(text: str) -> str:
    """A text of the client, at most `_LONGEST_NAME` characters of it."""
    return text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "…"

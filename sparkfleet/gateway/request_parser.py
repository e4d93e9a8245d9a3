"""Parses a request's model and requirements. Pure: bytes in; a target, or an error that names the fault, out."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sparkfleet.gateway.asgi import Fields
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.request_errors import bad_request
from sparkfleet.gateway.request.requirements import Requirements, needs_of
from sparkfleet.gateway.request.usage_option import BodyEdit, usage_option

MODEL_HEADER = b"x-sparkfleet-model"
PRIORITY_HEADER = b"x-sparkfleet-priority"
"""`batch`: the request waits for interactive ones."""
EXPLAIN_HEADER = b"x-sparkfleet-explain"
"""`1`: the answer has the reason for its group, in a header of the same name; `only`: that is the answer."""

_LONGEST_MODEL = 1024
_MOST_QUERY_FIELDS = 100
_SLICE = 1 << 16
_MOST_PARTS = 128
"""Parts of a form: more than a request with files has."""


class RequestTarget(NamedTuple):
    """Model and endpoint that a request addresses."""

    model: str
    needs: Requirements = Requirements()
    span: tuple[int, int] | None = None
    """Begin and end of the model's name in the body, in a form without quotes; None if it is not known."""
    usage: BodyEdit | None = None
    """Edit of the body that asks for the usage of its stream; None if it has none or asks itself."""
    previous: str = ""
    """Stored response that it continues; "" for none."""
    claimed: str = ""
    """Id that it gives its answer, which vLLM and SGLang accept; "" for none."""
    group: str = ""
    """The group that has the stored response which it names; "" if it names none."""
    is_stream: bool = False
    """True if it asks for its answer as a stream of events."""

    def after(self, edit: BodyEdit) -> RequestTarget:
        """The same of the body after an edit."""
        span = self.span
        if span is not None and span[0] >= edit.end:
            span = span[0] + edit.growth, span[1] + edit.growth
        return self._replace(span=span, usage=None)


def parse_target(query: bytes, fields: Fields, body: bytes | bytearray) -> RequestTarget:
    """The model of a request, and its requirements.

    A JSON body has it in `model`, a form in its field `model`; a request without a body (fetching or deleting a stored
    response) in the query or in the header `x-sparkfleet-model`.

    Raises:
        ApiError: 400, with the fault and its remedy.
    """
    found = _in_body(fields, body) if body else RequestTarget(_outside_body(query, fields))
    if not found.model:
        raise _missing(bool(body))
    return found


def is_form(fields: Fields) -> bool:
    """True if the body is a multipart form; every other one is read as JSON."""
    return _form_options(fields) is not None


def _form_options(fields: Fields) -> dict[bytes, bytes] | None:
    """The parameters of a multipart form's content type; None for another one."""
    given = fields.get(b"content-type", b"")
    if b"multipart" not in given.lower():
        return None
    media, options = parse_options_header(given)
    return options if media == b"multipart/form-data" else None


def _in_body(fields: Fields, body: bytes | bytearray) -> RequestTarget:
    options = _form_options(fields)
    return _in_json(body) if options is None else _in_form(body, options.get(b"boundary", b""))


def _outside_body(query: bytes, fields: Fields) -> str:
    named = fields.get(MODEL_HEADER)
    if named is not None:
        return named.decode("utf-8", "replace")
    try:
        given = parse_qs(query.decode("latin-1"), max_num_fields=_MOST_QUERY_FIELDS)
    except ValueError:
        raise bad_request(f"The query has more than {_MOST_QUERY_FIELDS} fields.") from None
    return given.get("model", [""])[0]


def _missing(has_body: bool) -> ApiError:
    how = (
        'Add "model" to the body; GET /v1/models lists the names.'
        if has_body
        else 'Add the model to the query ("?model=NAME"), or send the header "x-sparkfleet-model: NAME".'
    )
    return bad_request("The request names no model.", do=how, param="model", code="missing_model")


# JSON


def _in_json(body: bytes | bytearray) -> RequestTarget:
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _bad_json(f"byte {error.start} is not valid UTF-8") from None
    except RecursionError:
        raise _bad_json("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _bad_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError as error:
        raise _bad_json(str(error)) from None
    if not isinstance(value, dict):
        raise _bad_json("it must be an object")
    model = value.get("model")
    if model is not None and not isinstance(model, str):
        raise bad_request('"model" must be a string.', param="model")
    return RequestTarget(
        model or "",
        needs_of(value),
        usage=usage_option(value, body),
        previous=_string(value, "previous_response_id"),
        claimed=_string(value, "request_id"),
        is_stream=value.get("stream") is True,
    )


def _string(value: dict[str, Any], name: str) -> str:
    given = value.get(name)
    return given if isinstance(given, str) else ""


def _bad_json(why: str) -> ApiError:
    return bad_request(
        f"The request body is not usable JSON: {why}.",
        do="The body is read as JSON unless its content-type is multipart/form-data.",
        code="invalid_json",
    )


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _one_model(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # If a request has two "model" fields, this parser and the engine's might take different ones.
    value = dict(pairs)
    if len(value) != len(pairs) and sum(name == "model" for name, _ in pairs) > 1:
        raise ValueError('"model" occurs twice')
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_one_model)


# Forms


def _in_form(body: bytes | bytearray, boundary: bytes) -> RequestTarget:
    if not boundary:
        raise _bad_form("its content-type has no boundary")
    fields = _ModelField()
    try:
        parser = MultipartParser(boundary, fields.callbacks())  # type: ignore[arg-type]
        for start in range(0, len(body), _SLICE):
            fields.offset = start
            parser.write(bytes(body[start : start + _SLICE]))
        parser.finalize()
    except FormParserError as error:
        raise _bad_form(str(error)) from None
    if not fields.complete:
        raise _bad_form("it is not terminated")
    if len(fields.found) > 1:
        raise _bad_form('"model" occurs twice')
    if not fields.found:
        return RequestTarget("")
    end = fields.begin + len(fields.found[0])
    return RequestTarget(fields.found[0].decode("utf-8", "replace"), span=(fields.begin, end))


def _bad_form(why: str) -> ApiError:
    return bad_request(f"The multipart form cannot be read: {why}.", code="invalid_form")


class _ModelField:
    """Collects the fields named `model` from a form."""

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self.complete = False
        self.offset = 0
        """Place of the bytes that are written next, in the body."""
        self.begin = 0
        """Place of the first value that was found."""
        self._name = b""
        self._value = b""
        self._disposition = b""
        self._inside = False
        self._parts = 0

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._body_begins,
            "on_part_data": self._data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise _bad_form(f"it has more than {_MOST_PARTS} parts")
        self._disposition = self._name = self._value = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def _body_begins(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._inside = options.get(b"name") == b"model" and b"filename" not in options

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._inside:
            if not self._value:
                self.begin = self.offset + start
            self._value += data[start:end]
            if len(self._value) > _LONGEST_MODEL:
                raise _bad_form('"model" is too long')

    def _part_end(self) -> None:
        if self._inside:
            self.found.append(self._value)
        self._inside = False

    def _end(self) -> None:
        self.complete = True

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.gateway.asgi import Headers, fields_of
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.request_parser import parse_target

JSON: Headers = [(b"content-type", b"application/json")]
FORM: Headers = [(b"content-type", b'multipart/form-data; boundary="b0"')]


def form(*parts: tuple[str, str], end: str = "--b0--\r\n") -> bytes:
    return "".join(f"--b0\r\n{head}\r\n\r\n{value}\r\n" for head, value in parts).encode() + end.encode()


def field(name: str) -> str:
    return f'Content-Disposition: form-data; name="{name}"'


FILE = 'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav'


@pytest.mark.parametrize(
    ("query", "headers", "body", "model"),
    [
        (b"", JSON, b'{"model": "tiny"}', "tiny"),
        (b"", [], b'{"messages": [{"model": "inner"}], "model": "Qwen/Qwen3"}', "Qwen/Qwen3"),
        (b"", JSON, '{"model": "größe"}'.encode(), "größe"),
        (b"", JSON, b'{"a": 1, "a": 2, "model": "tiny"}', "tiny"),
        (b"model=other", JSON, b'{"model": "tiny"}', "tiny"),
        (b"model=tiny&x=1", [], b"", "tiny"),
        (b"model=Qwen%2FQwen3", [], b"", "Qwen/Qwen3"),
        (b"", [(b"x-sparkfleet-model", b"tiny")], b"", "tiny"),
        (b"model=b", [(b"x-sparkfleet-model", b"a")], b"", "a"),
        (b"", FORM, form((field("model"), "whisper")), "whisper"),
        (
            b"",
            FORM,
            form((FILE, "RIFF\0\r\n--b1"), (field("model"), "whisper"), (field("x"), "y")),
            "whisper",
        ),
        (
            b"",
            FORM,
            form((FILE, '{"model": "no"}'), ("content-disposition: form-data; name=model", "m")),
            "m",
        ),
    ],
)
def test_the_model_is_found(query: bytes, headers: Headers, body: bytes, model: str) -> None:
    assert parse_target(query, fields_of(headers), body).model == model


DEEP = b'{"model":"m","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    ("headers", "body", "code", "says"),
    [
        (JSON, b"", "missing_model", 'Add the model to the query ("?model=NAME")'),
        (JSON, b"{}", "missing_model", 'Add "model" to the body'),
        (JSON, b'{"model": ""}', "missing_model", "names no model"),
        (JSON, b'{"model": null}', "missing_model", "names no model"),
        (JSON, b'{"model": 5}', "bad_request", '"model" must be a string'),
        (JSON, b'{"model": ["tiny"]}', "bad_request", '"model" must be a string'),
        (JSON, b'{"model": "a", "model": "b"}', "invalid_json", '"model" occurs twice'),
        (JSON, b'{"model": "a"', "invalid_json", "at line 1, column 14"),
        (JSON, b'{"model": "a"} {}', "invalid_json", "Extra data"),
        (JSON, b'["model"]', "invalid_json", "it must be an object"),
        (JSON, b"null", "invalid_json", "it must be an object"),
        (JSON, b'{"model": "a", "temperature": NaN}', "invalid_json", "NaN is not JSON"),
        (JSON, b'{"model": "a", "temperature": -Infinity}', "invalid_json", "-Infinity is not JSON"),
        (JSON, b'{"model": "a", "seed": ' + b"9" * 5000 + b"}", "invalid_json", "digits"),
        (JSON, b'{"model": "\xff"}', "invalid_json", "byte 11 is not valid UTF-8"),
        (JSON, '{"model": "a"}'.encode("utf-16"), "invalid_json", "not valid UTF-8"),
        (JSON, b'\xef\xbb\xbf{"model": "a"}', "invalid_json", "Expecting value"),
        (JSON, b'{"model": "a\nb"}', "invalid_json", "control character"),
        (JSON, DEEP, "invalid_json", "nested too deeply"),
        (JSON, b"model=tiny", "invalid_json", "unless its content-type is multipart"),
        ([(b"content-type", b"multipart/form-data")], b"x", "invalid_form", "no boundary"),
        (
            [(b"content-type", b"multipart/form-data; boundary=" + b"b" * 999)],
            b"x",
            "invalid_form",
            "oundary",
        ),
        (FORM, b"garbage", "invalid_form", "boundary"),
        (FORM, form((field("model"), "a"), end=""), "invalid_form", "it is not terminated"),
        (FORM, form((field("model"), "a"), (field("model"), "b")), "invalid_form", "twice"),
        (FORM, form((field("model"), "m" * 5000)), "invalid_form", "too long"),
        (FORM, form((field("prompt"), "a")), "missing_model", "names no model"),
        (FORM, form((f"{field('model')}; filename=x", "a")), "missing_model", "names no model"),
        (FORM, form((f"{field('x')}\r\nX-Big: " + "v" * 9000, "a")), "invalid_form", "header size"),
        (FORM, form((field("x") + "\r\nX: y" * 30, "a")), "invalid_form", "header count"),
    ],
)
def test_what_names_no_model_is_told_so(headers: Headers, body: bytes, code: str, says: str) -> None:
    with pytest.raises(ApiError, match=re.escape(says)) as caught:
        parse_target(b"", fields_of(headers), body)
    assert (caught.value.status, caught.value.code) == (400, code)


def test_a_query_with_thousands_of_fields_is_refused() -> None:
    with pytest.raises(ApiError, match="more than 100 fields"):
        parse_target(b"&".join(b"a=%d" % i for i in range(5000)), {}, b"")


HEADERS = st.sampled_from(
    [[], JSON, FORM, [(b"content-type", b"multipart/form-data; boundary")], [(b"content-type", b"; ; =")]]
)
BODIES = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=100).map(str.encode),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["model", "messages", "x"]), inner, max_size=3)
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
    st.lists(
        st.sampled_from([b"--b0", b"--b0--", b"\r\n", b"\n", b":", field("model").encode(), b"a", b"\0"])
    ).map(b"".join),
)


def outcome(query: bytes, headers: Headers, body: bytes) -> str | ApiError:
    try:
        return parse_target(query, fields_of(headers), body).model
    except ApiError as refusal:
        return refusal


@given(query=st.binary(max_size=100), headers=HEADERS, body=BODIES)
def test_any_bytes_are_a_model_or_a_refusal_of_the_client(
    query: bytes, headers: Headers, body: bytes
) -> None:
    found = outcome(query, headers, body)
    if isinstance(found, ApiError):
        assert found.status == 400
        assert json.loads(found.body("openai"))["error"]["message"]
    else:
        assert found


@given(content_type=st.binary(max_size=80), body=st.binary(min_size=1, max_size=80))
def test_any_content_type_is_survived(content_type: bytes, body: bytes) -> None:
    with pytest.raises(ApiError):
        parse_target(b"", {b"content-type": content_type}, b"\xff" + body)


@given(model=st.text(min_size=1, max_size=40), rest=st.dictionaries(st.text(max_size=5), st.text(max_size=5)))
def test_every_name_that_json_can_hold_is_found(model: str, rest: dict[str, str]) -> None:
    assert parse_target(b"", fields_of(JSON), json.dumps({**rest, "model": model}).encode()).model == model

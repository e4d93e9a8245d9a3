"""Two requests of Claude Code that differ in nothing but the digits of its first line are the same to an engine."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.gateway.body.attribution_line import without_changing_digits
from sparkfleet.gateway.body.request_body import PIECE_BYTES, RequestBody
from sparkfleet.gateway.request_parser import parse_target

LINE = "x-anthropic-billing-header: cc_version={version}; cc_entrypoint=cli; cch={hash};"


def request(version="2.1.245.2ef", hash_="fa690", before=0, **more):
    """A request as Claude Code sends it."""
    value = {
        "model": "claude",
        "messages": [{"role": "user", "content": "x" * before}],
        "system": [
            {"type": "text", "text": LINE.format(version=version, hash=hash_)},
            {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
        ],
        **more,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def of(data, chunk=1 << 16):
    body = RequestBody()
    for start in range(0, len(data), chunk):
        body.add(data[start : start + chunk])
    return body


def changed(data, chunk=1 << 16):
    return without_changing_digits(of(data, chunk)).whole()


def test_the_digits_become_zeros_and_nothing_else_changes():
    assert changed(request()) == request("2.1.245.000", "00000")
    assert changed(request("2.1.37.0d9", "97bd6")) == changed(request("2.1.37.ead", "24c2d"))
    assert changed(request("2.1.37", "1")) == request("2.1.37", "0"), "a version is left as it is"
    assert json.loads(changed(request()))["system"][1]["cache_control"] == {"type": "ephemeral"}


def test_a_line_with_more_behind_it_in_the_same_text():
    text = (
        LINE.format(version="2.1.100.7b4", hash="eb6c6") + "\nThe commit has cch=abc and cc_version=1.2.3.4."
    )
    data = json.dumps({"system": text}).encode()
    (system,) = json.loads(changed(data)).values()
    assert system == text.replace("7b4", "000").replace("eb6c6", "00000")


@pytest.mark.parametrize(
    "text",
    [
        "What is x-anthropic-billing-header: cc_version=2.1.37.0d9; cch=fa690;?",
        "cch=fa690",
        "x-anthropic-version: 2023-06-01; cch=1",
    ],
)
def test_other_texts_are_left_as_they_are(text):
    body = of(json.dumps({"system": text}).encode())
    assert without_changing_digits(body) is body


@pytest.mark.parametrize("offset", [*range(-300, 60, 7), 0, -1, 1])
def test_a_line_over_the_edge_of_a_piece(offset):
    """A long body is kept in pieces."""
    plain = request()
    begins = plain.index(b'"x-anthropic')
    data = request(before=PIECE_BYTES - begins + offset, tools="y" * 600)
    expected = data.replace(b"245.2ef", b"245.000").replace(b"fa690", b"00000")
    assert changed(data, PIECE_BYTES) == expected
    assert len(list(of(data, PIECE_BYTES))) > 1


def test_a_body_of_such_lines_only_is_changed_in_a_few():
    """Nobody makes the gateway copy a body a million times."""
    line = json.dumps(LINE.format(version="2.1.1.abc", hash="abcde"))
    data = f"[{','.join([line] * 1000)}]".encode()
    assert 1 <= changed(data).count(b"cch=00000") <= 10


def test_a_line_of_many_hashes_is_changed_in_one_pass_that_leaves_the_other_pieces_alone():
    """Each hash was an edit that copied the body twice: 304 of them took 19 GiB of copies, without a pause."""
    data = (f'["x-anthropic-billing-header: {"cch=1 " * 38}",' * 20).encode()
    body = of(data.ljust(3 * PIECE_BYTES), PIECE_BYTES)
    after = without_changing_digits(body)
    assert 1 <= after.whole().count(b"cch=0") <= 16
    assert [new is old for new, old in zip(after, body, strict=True)] == [False, True, True]


def test_lines_are_read_without_a_copy_of_their_pieces():
    """A piece was copied for each line, whether it had digits or not."""
    slices = []

    class Piece(bytes):
        def __getitem__(self, place):
            slices.append(part := super().__getitem__(place))
            return part

        def __radd__(self, before):
            slices.append(whole := before + bytes(self))
            return whole

    body = RequestBody()
    body._pieces = [Piece(b'"x-anthropic-billing-header: no digits",'.ljust(PIECE_BYTES)) for _ in range(4)]
    body.size = 4 * PIECE_BYTES
    assert without_changing_digits(body) is body
    assert max(map(len, slices)) <= 256


@given(st.binary(max_size=600), st.integers(1, 64))
def test_whatever_the_bytes_are_only_digits_behind_such_a_beginning_change(data, chunk):
    body = b'"x-anthropic-billing-header:' + data
    after = changed(body, chunk)
    assert len(after) == len(body)
    assert all(new in (old, 0x30) for old, new in zip(body, after, strict=True))
    assert changed(after, chunk) == after


async def test_an_engine_receives_the_same_prompt_twice_and_openais_api_is_left_alone(open_door):
    door = await open_door()
    hashes = ("fa690", "97bd6")
    for path in ("/v1/messages", "/v1/chat/completions"):
        for hash_ in hashes:
            async with door.http.post(door.url + path, data=request(hash_=hash_, model="tiny")) as answer:
                assert answer.status == 200
    first, second, *others = door.engine.bodies
    assert first == second == request("2.1.245.000", "00000", model="tiny")
    assert others == [request(hash_=hash_, model="tiny") for hash_ in hashes]


def test_the_second_request_is_routed_as_one_whose_beginning_is_known():
    """The line stands first: its digits would change the name of each block of the prompt."""

    def prefix(hash_):
        data = request(hash_=hash_, messages=[{"role": "user", "content": "word " * 2000}])
        return parse_target(b"", {}, changed(data)).needs.prefix

    assert len(prefix("fa690")) > 4
    assert prefix("fa690") == prefix("97bd6")

"""Bodies that are changed at a few places: what is not touched is not copied."""

from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.gateway.body.request_body import PIECE_BYTES, RequestBody


def in_pieces(number: int) -> RequestBody:
    body = RequestBody()
    for value in range(number):
        body.add(bytes([value]) * PIECE_BYTES)
    return body


def test_the_pieces_that_an_edit_does_not_touch_are_the_same_objects() -> None:
    body = in_pieces(8)
    edits = [
        (5, 8, b"new"),
        (PIECE_BYTES - 2, PIECE_BYTES + 2, b""),
        (5 * PIECE_BYTES, 5 * PIECE_BYTES + 1, b"longer"),
    ]
    made = body.replaced(*edits)
    shared = [new is old for new, old in zip(made, body, strict=True)]
    assert shared == [False, False, True, True, True, False, True, True]
    assert made.size == len(made.whole()) == body.size - 4 + 5


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[bytes], list[tuple[int, int, bytes]]]:
    pieces = draw(st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=6))
    size = sum(map(len, pieces))
    ends = sorted(draw(st.lists(st.integers(0, size - 1), max_size=8)))
    ends = ends[: len(ends) // 2 * 2]
    return pieces, [
        (start, end, draw(st.binary(max_size=3))) for start, end in zip(ends[::2], ends[1::2], strict=True)
    ]


@given(edited())
def test_edits_are_those_of_one_piece(case: tuple[list[bytes], list[tuple[int, int, bytes]]]) -> None:
    pieces, edits = case
    body = RequestBody()
    body._pieces, body.size = list(pieces), sum(map(len, pieces))
    expected = b"".join(pieces)
    for start, end, text in reversed(edits):
        expected = expected[:start] + text + expected[end:]
    made = body.replaced(*edits)
    assert (made.whole(), made.size) == (expected, len(expected))

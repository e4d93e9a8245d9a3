import pytest

from sparkfleet.cli import output
from sparkfleet.planner.report.explain.layout import COLUMNS, WIDTH, lines_of


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("  then        short", ["  then        short"]),
        ("", []),
        (
            "  choice      spark1 · TP=1 · vLLM 0.27.1 · FP8",
            ["  choice      spark1 · TP=1 · vLLM", "                0.27.1 · FP8"],
        ),
        (
            "              45.1 GiB · TTFT 1.3 s   calibrated",
            ["              45.1 GiB · TTFT 1.3 s", "                calibrated"],
        ),
        (
            "  what happens  It stops after two or three days.",
            ["  what happens  It stops after two or", "                  three days."],
        ),
        (
            "  if it fails rung 2: spark1+spark2 with another engine",
            ["  if it fails rung 2: spark1+spark2 with", "                another engine"],
        ),
        (
            "  both Sparks: 1.7× as fast: `parallel: {tp: 2}` (x)",
            ["  both Sparks: 1.7× as fast:", "  `parallel: {tp: 2}` (x)"],
        ),
        ("no label, and longer than the line is wide", ["no label, and longer than the line is", "  wide"]),
        (
            "x https://example.org/a-very-long-path/of-one-word",
            ["x", "  https://example.org/a-very-long-path/of-one-word"],
        ),
    ],
)
def test_what_follows_begins_below_the_text(line, folded):
    assert output.fold(line, 40).splitlines() == folded


def test_a_line_stays_a_line_where_there_is_no_terminal(capsys):
    output.print_line("  rejected    [NODE] " + "x " * 200)
    assert capsys.readouterr().out.startswith("  rejected    [NODE] x x")


@pytest.mark.parametrize(
    "texts",
    [
        ("word " * 40 + "end", "  indented " + "word " * 40 + "`a code with spaces` end"),
        ("short", "  a subordinate line, which stays", "x" * 200),
        ("x" * (WIDTH - 20) + " `apply --retry NAME` tries it again", "  more"),
    ],
)
def test_a_narrow_terminal_folds_whole_texts_and_not_their_lines(texts):
    """On 80 columns each wrapped line of a plan was followed by one of two or three words."""
    lines = lines_of("label", *texts)
    whole = [text.rstrip() for text in texts]
    assert [line[14:] for line in output.unwrapped(["", *lines, ""], COLUMNS)] == ["", *whole, ""]

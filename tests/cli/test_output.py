import pytest

from sparkfleet.cli import output


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

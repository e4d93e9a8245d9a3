"""Scripts as a shell would split them, without running anything."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.fleet.conversion.shell_command import shown, unknown_names
from sparkfleet.fleet.conversion.shell_text import commands_of


def words(text, **variables):
    return [list(one.words) for one in commands_of(text, variables)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b c", [["a", "b", "c"]]),
        ("a \\\n  b # c\nd", [["a", "b"], ["d"]]),
        ("a 'x y' \"p q\" z#1", [["a", "x y", "p q", "z#1"]]),
        ("""a '{"k": 1}' "{\\"k\\": 1}" """, [["a", '{"k": 1}', '{"k": 1}']]),
        ("a && b; c | d & e || f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a > /tmp/log 2>&1 &\nb", [["a"], ["b"]]),
        ("a &> log\nb < in", [["a"], ["b"]]),
        ("a '' \"\"", [["a", "", ""]]),
        ("cat <<EOF\nvllm serve x\nEOF\nb", [["cat"], ["b"]]),
        ("cat > f <<'E'\nx\nE\nb", [["cat"], ["b"]]),
        ("cat <<-E\n\tx\n\tE\nb", [["cat"], ["b"]]),
        ("\r\na b\r\n", [["a", "b"]]),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("M=org/m; a $M ${M} \"$M\" '$M'", ["a", "org/m", "org/m", "org/m", "$M"]),
        ('A="-x 1"\na $A "$A"', ["a", "-x", "1", "-x 1"]),
        ("a ${M:-d} ${M-d} \"${N:-'d e'}\"", ["a", "d", "d", "d e"]),
        ("M=1; a ${M:-d} ${M:+yes} ${N:+no}", ["a", "1", "yes"]),
        ('B=x; M=${1:-"$B/y"}; a $M', ["a", "x/y"]),
        ("export M=1 N=2; a $M$N", ["a", "12"]),
        ("M=1; M+=2; a $M", ["a", "12"]),
        (
            'A=(-x 1 # note\n  "p q")\nA+=(z)\na "${A[@]}" ${A[*]}',
            ["a", "-x", "1", "p q", "z", "-x", "1", "p", "q", "z"],
        ),
        ("A=()\na ${A[@]} b", ["a", "b"]),
        ("a ~/m ~", ["a", "/home/me/m", "/home/me"]),
    ],
)
def test_variables(text, expected):
    assert words(text, HOME="/home/me")[-1] == expected


def test_bash_agrees():
    """On everything of the cases above that it can print."""
    script = """
M=org/m; A=(-x 1 # note
 "p q"); A+=(z); D=${Q:-"$M/y"}; E="-k 2"
printf '<%s>' "$M" ${A[@]} "${A[@]}" $D $E "$E" '$M' "a \\"b\\" \\$c" x\\ y ${M:+yes} z#1 '{"k": "v"}' \\
  last
"""
    printed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    (command,) = commands_of(script)
    # printf prints the words behind its format; a shell splits "p q" of ${A[@]} without quotes
    assert "".join(f"<{word}>" for word in command.words[2:]) == printed


def test_variables_in_front_and_exported_ones_are_the_commands():
    first, second = commands_of("export A=1\nB=2 first\nC=3\nsecond")
    assert (first.env, second.env) == ({"A": "1", "B": "2"}, {"A": "1"})
    assert second.variables == {"A": "1", "C": "3"}


def test_what_nothing_sets_is_known_by_name():
    (word,) = words("$A/${B}-$(nproc)`x`")[0]
    assert unknown_names(word) == ("A", "B", "$(…)")
    assert shown(word) == "$A/$B-$(…)$(…)"


@given(st.text(alphabet="ab \t\n\"'\\$(){}<>&|;#`=~[]@E-", max_size=60))
def test_every_text_ends(text):
    for one in commands_of(text):
        assert one.words


def test_a_text_without_an_end_quote_ends():
    assert words("a 'b") == [["a", "b"]]
    assert words('a "b ${c') == [["a", "b ￼c￼"]]

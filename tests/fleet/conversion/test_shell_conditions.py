"""Conditions of scripts, beside what bash runs of them."""

import subprocess

import pytest

from sparkfleet.fleet.conversion.shell_command import UNKNOWN, Assumptions
from sparkfleet.fleet.conversion.shell_conditions import truth_of
from sparkfleet.fleet.conversion.shell_text import commands_of

SCRIPTS = (
    'RANK=$1\n[ "$RANK" != 0 ] && HEADLESS=--headless\nvllm serve m --node-rank $RANK $HEADLESS',
    'if [ "$1" = "0" ]; then R=0; H=; else R=1; H=--headless; fi; vllm serve m $R $H',
    'if [[ $1 == 0 ]]; then\n R=0\nelif [[ "$1" == 1 ]]; then\n R=one\nelse\n R=$1\nfi\nvllm $R "$@"',
    'case "$1" in\n 0|head) R=head ;;\n 1) R=one; H="-h x";;\n *) R=other\nesac\nvllm $R $H "$H"',
    "case $1 in 0) vllm zero;; [1-3]) vllm few;; *) vllm many;; esac; vllm end",
    "case $1 in (0) vllm zero;; (*) vllm many; esac && vllm end",
    '[ "$1" -gt 0 ] && { H=--headless; P=2; } || { H=; P=1; }\nvllm "$P" $H',
    '[ -z "$2" ] && vllm none; [ -n "$1" ] && vllm some; [ "$2" ] && vllm two; test -n "$1" && vllm test',
    'R=$1; shift; vllm $R "$@" "x$@" -',
    "(( $1 > 0 )) && vllm more; if (( $1 == 0 )); then vllm zero; fi",
    'A=(); [ $1 != 0 ] && A+=(--headless "x y"); vllm serve "${A[@]}" ${A[*]} -',
    "if [ $1 = 0 ]; then A=(a b); else A=(c); fi; vllm ${A[@]}",
    "R=${1:-5}; if ! [ $R -eq 0 ]; then vllm a; else vllm b; fi; vllm c",
    'if [ "$1" = 0 ] && [ "$1" != 1 ]; then vllm a; fi; [ "$1" = 1 ] || [ "$1" = 0 ] || vllm z',
    'if [[ "$1" == 0 && "$1" != 1 ]]; then vllm a; else vllm b; fi; [[ "$1" == 1 || "$1" == 0 ]] || vllm z',
    "if [ $1 = 0 ]; then if [ $1 = 1 ]; then vllm x; else vllm y; fi; vllm w; else case $1 in 1) vllm v;; esac; fi; vllm u",
    "if [ $1 = 0 ]\nthen\nvllm a |\n cat\nelse vllm b; fi",
    "[ $1 = 0 ] && vllm a | cat\n[ $1 = 1 ] && (vllm b; vllm c) && vllm d",
    "true && vllm x; false && vllm y || vllm z; : && vllm w",
    'H=""; test "$1" = 0 || H="--headless"; export H; vllm $H "$H"',
    "for i in 1; do if [ $1 = 0 ]; then vllm $1; fi; done; vllm q",
    "[ $1 = 0 ] &&\n vllm a\nif [ $1 = 1 ]; then vllm b; fi && vllm c",
    'if [[ "$1" != 0* ]]; then vllm a; fi; [[ $1 == ? ]] && vllm one',
    "if false; then vllm a; elif true; then vllm b; else vllm c; fi; while [ $1 = 9 ]; do :; done; vllm w",
    "{ vllm a; [ $1 = 0 ] && vllm b; }; vllm c",
    "if [ $1 = 0 ]; then vllm a & else vllm b; fi; wait",
    'M=$2; vllm ${M:-d} "${M:+-x}" ${1:+y}',
    'M=d; while [ $# -gt 9 ]; do case "$1" in --model) M="$2"; shift 2;; esac; done; vllm $M',
)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("argument", ["0", "1", "3"])
def test_bash_runs_the_same(script, argument):
    program = f'vllm() {{ printf "<%s>" "$@"; echo; }}\n{script}\ntrue'
    run = subprocess.run(
        ["bash", "-c", program, "name", argument], capture_output=True, text=True, check=True
    )
    read = commands_of(script, {}, Assumptions({"1": argument}))
    found = ["".join(f"<{word}>" for word in one.words[1:]) or "<>" for one in read if one.words[0] == "vllm"]
    assert sorted(found) == sorted(run.stdout.splitlines())  # what runs beside it prints when it can


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('if [ "$1" = head ]; then a; else b; fi; c', {None: "a b c", True: "a c", False: "b c"}),
        ('case "$1" in head) a;; worker) b;; esac; c', {None: "a b c", True: "a c", False: "b c"}),
        ("[ $X = 1 ] && a || b", {None: "a b", True: "a b", False: "b"}),
        ("[ -f /x ] || a; b", {None: "a b", True: "b", False: "a b"}),
        ('[ -z "$X" ] && a; [ -n "$X" ] && b; c', {None: "a c", True: "a b c", False: "a c"}),
        ("cd /x && a; pull || b", {None: "cd a pull b", True: "cd a pull b", False: "cd a pull b"}),
    ],
)
def test_tests_that_nothing_decides(text, found):
    for undecided, names in found.items():
        read = commands_of(text, {}, Assumptions(undecided=undecided))
        assert " ".join(one.words[0] for one in read) == names, undecided


def test_a_given_value_replaces_the_scripts_own():
    script = 'R=$1; if [ "$2" = x ]; then R=1; fi; R+=0; A=(a b); case $3 in *) M=m;; esac\nrun $R ${A[@]} $M'
    given = {"R": "5", "A": "c d e", "M": "org/m"}
    assert commands_of(script, {}, Assumptions(given))[-1].words == ("run", "50", "c", "d", "e", "org/m")
    plain = commands_of(script)[-1]
    assert plain.words == ("run", "10", "a", "b", "m")


def test_what_a_branch_without_a_known_condition_does_not_know_replaces_nothing():
    (command,) = commands_of('M=d; [ "$1" = x ] && M=$2; if [ -f y ]; then M=$3; fi; run $M')
    assert command.words == ("run", "d")
    (command,) = commands_of("M=d; M=$1; run $M")
    assert command.words == ("run", f"{UNKNOWN}1{UNKNOWN}")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["[", "a", "=", "a", "]"], True),
        (["[", "!", "a", "=", "a", "]"], False),
        (["[", "x", "-lt", "1", "]"], None),
        (["[", "a", "-o", "b", "-a", "c", "]"], None),
        (["[", f"{UNKNOWN}$(…){UNKNOWN}", "]"], None),
        (["((", "x"], None),
        (["test"], None),
        (["grep", "x"], None),
        ([], None),
    ],
)
def test_the_result_of_a_test(words, found):
    assert truth_of(words) is found

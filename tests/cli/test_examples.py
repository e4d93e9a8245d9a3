"""Examples of verbs: each verb has one, which its own parser takes, in its help and in errors."""

import shlex

import pytest

from sparkfleet.cli.examples import EXAMPLES
from sparkfleet.cli.verb_group import load_command
from sparkfleet.cli.verbs import VERBS


def leaves(command, path):
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    else:
        for name, one in inner.items():
            yield from leaves(one, f"{path} {name}")


COMMANDS = {path: command for name in VERBS for path, command in leaves(load_command(name), name)}


def test_each_verb_has_one():
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize("path", list(COMMANDS))
def test_it_can_be_typed(path):
    words = shlex.split(EXAMPLES[path])
    assert words[: 1 + len(path.split())] == ["sparkfleet", *path.split()]
    with COMMANDS[path].make_context(path, words[1 + len(path.split()) :]) as context:
        assert context.params
    assert len(EXAMPLES[path]) <= 72


@pytest.mark.parametrize("path", ["ask", "keys create"])
def test_the_help_ends_with_it(sparkfleet, path):
    code, out, err = sparkfleet(*path.split(), "--help")
    assert (code, err) == (0, "")
    assert out.rstrip().endswith(f"Example: `{EXAMPLES[path]}`")


@pytest.mark.parametrize(
    ("argv", "what", "path"),
    [
        (["ask"], "ask: missing argument 'NAME'.", "ask"),
        (["keys", "create", "x", "--rpm", "5"], "keys create: no such option: --rpm.", "keys create"),
        (["usage", "--by", "foo"], "usage: invalid value for '--by': 'foo' is not one of", "usage"),
    ],
)
def test_a_wrong_command_line_has_one(sparkfleet, argv, what, path):
    code, out, err = sparkfleet(*argv)
    first, *others = err.splitlines()
    assert (code, out) == (1, "")
    assert first.startswith(f"error: {what}")
    assert others == [
        f"For example: `{EXAMPLES[path]}`. `sparkfleet {path} --help` prints the arguments and options."
    ]


def test_the_list_of_verbs_has_a_line_for_each():
    for name, verb in VERBS.items():
        assert len(verb.brief) < 92, name
        assert verb.help.startswith(verb.brief[:-1])
        assert ". " not in verb.brief

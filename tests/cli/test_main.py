import ast
import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkfleet import __version__
from sparkfleet.cli import main as module
from sparkfleet.cli import verbs
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.errors import ControlError, Infeasible

VERBS = {"plan", "apply", "status", "describe", "logs", "ask", "delete", "up", "down", "keys", "version"}


def sparkfleet(*args, cwd=None, **env):
    return subprocess.run(
        [str(Path(sys.executable).parent / "sparkfleet"), *args],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def entered(monkeypatch, capsys):
    """Runs a command line in this process, which takes no second: (exit code, stdout, stderr)."""

    def entered(*argv):
        monkeypatch.setattr("sys.argv", ["sparkfleet", *argv])
        with pytest.raises(SystemExit) as ended:
            module.main()
        return ended.value.code, *capsys.readouterr()

    return entered


def test_help_names_every_verb_and_every_exit_code(entered, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = entered("--help")
    assert code == 0
    assert {verb for verb in VERBS if f" {verb} " in out} == VERBS
    assert "3 infeasible" in out
    assert "130" in out
    assert "First steps: `sparkfleet init HOST…`" in out.rstrip().rpartition("output left")[2]


@pytest.mark.parametrize("args", [["nope"], ["describe"], ["status", "--nope"], ["keys", "nope"]])
def test_a_wrong_command_line_is_an_error_and_not_pending_changes(entered, args):
    code, _, err = entered(*args)
    assert code == 1
    assert err.startswith("error: ")
    verbs_alone = args in (["nope"], ["keys", "nope"])
    assert f"--help` {'lists the verbs' if verbs_alone else 'prints the arguments and options'}." in err
    assert "Traceback" not in err


def test_version_for_people_and_for_programs(entered):
    assert entered("version")[1] == f"sparkfleet {__version__}\n"
    assert f'"sparkfleet": "{__version__}"' in entered("version", "--json")[1]


@pytest.mark.parametrize("verb", [["describe", "x"], ["delete", "-y", "x"], ["keys", "create", "x"]])
def test_a_verb_that_needs_a_fleet_says_that_it_is_down(entered, monkeypatch, tmp_path, verb):
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    monkeypatch.chdir(tmp_path)
    code, _, err = entered(*verb)
    assert code == 1
    assert "is down" in err
    assert "sparkfleet up" in err


def test_an_inventory_that_is_not_there_is_named(entered, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    code, _, err = entered("status")
    assert code == 1
    assert "inventory.yaml: no such file" in err
    assert "`sparkfleet init HOST…` writes it" in err


def outcome(monkeypatch, result):
    def app(**_):
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr(module, "app", app)
    with pytest.raises(SystemExit) as ended:
        module.main()
    return ended.value.code


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (None, 0),
        (Exit.PENDING, 2),
        (ControlError("away", means="nothing is served", do="start it"), 1),
        (Infeasible("too large"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(monkeypatch, result, code):
    assert outcome(monkeypatch, result) == code


def test_an_error_says_what_happened_what_it_means_and_what_to_do(monkeypatch, capsys):
    outcome(monkeypatch, ControlError("away", means="nothing is served", do="start it"))
    assert capsys.readouterr().err.splitlines() == ["error: away", "nothing is served", "start it"]


def test_a_bug_is_not_hidden(monkeypatch):
    monkeypatch.setattr(module, "app", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        module.main()


def without_reader(argv, cwd):
    """Exit code and standard error of a command line whose output nobody reads."""
    reads, writes = os.pipe()
    os.close(reads)
    with subprocess.Popen(
        [sys.executable, "-m", "sparkfleet", *argv], stdout=writes, stderr=subprocess.PIPE, text=True, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])},
    ) as running:  # fmt: skip
        os.close(writes)
        _, err = running.communicate(timeout=60)
    return running.returncode, err


@pytest.mark.parametrize("argv", [["explain"], ["explain", "--json"], ["--help"]])
def test_a_reader_that_leaves_gets_the_code_of_a_closed_pipe(argv, tmp_path):
    """`set -o pipefail; sparkfleet apply … | grep -q x` was 0, although the deployment did not fit."""
    assert without_reader(argv, tmp_path) == (141, "")


@pytest.mark.parametrize(
    ("argv", "endless"),
    [
        (["logs", "tiny"], True),
        (["events"], True),
        (["status", "--watch"], True),
        (["status"], False),
        (["apply", "x.yaml"], False),
        ([], False),
    ],
)
def test_only_an_endless_verb_is_done_when_its_reader_leaves(monkeypatch, argv, endless):
    monkeypatch.setattr(module.sys, "argv", ["sparkfleet", *argv])
    monkeypatch.setattr(module.sys, "stderr", io.StringIO())
    monkeypatch.setattr(module.os, "dup2", lambda *_: None)
    assert outcome(monkeypatch, BrokenPipeError()) == (0 if endless else 141)


def test_ctrl_c_during_the_imports(tmp_path):
    """It ended with a traceback of imports in the first tenth of a second."""
    code = (
        "import sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Slow())\n"
        "sys.argv = ['sparkfleet', 'version']\n"
        "import runpy\n"
        "runpy.run_module('sparkfleet', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
@pytest.mark.parametrize("argv", ["status --json", "plan tiny.yaml --json", "delete tiny"])
def test_a_closed_stream_is_no_crash(tmp_path, argv, closed):
    """`sparkfleet status --json >&-` ended with a traceback."""
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    done = subprocess.run(
        ["sh", "-c", f"'{Path(sys.executable).parent / 'sparkfleet'}' {argv} {closed}"],
        cwd=tmp_path, env={**os.environ, "SPARKFLEET_HOME": str(tmp_path / "state")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == (0 if argv.startswith("status") else 1)
    assert "Traceback" not in done.stderr


def test_a_name_that_is_no_file_gets_the_way_to_give_a_model(entered, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, _, err = entered("plan", "qwen")
    assert code == 1
    assert err.splitlines() == [
        "error: qwen: no such file. Expected a YAML file.",
        "A model of the Hub needs no file: ORG/MODEL in its place, with the name of its owner.",
    ]


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_a_model_without_its_owner_gets_the_command(entered, monkeypatch, tmp_path, verb):
    monkeypatch.chdir(tmp_path)
    code, _, err = entered(verb, "gpt-oss-120b")
    assert code == 1
    assert err.splitlines() == [
        "error: gpt-oss-120b: no such file, and a model of the Hub has the name of its owner.",
        f"Did you mean `sparkfleet {verb} openai/gpt-oss-120b`?",
    ]


def test_a_model_of_several_owners_gets_a_command_for_each(entered, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    _, _, err = entered("plan", "qwen3.8-27b-nvfp4")
    assert "`sparkfleet plan nvidia/Qwen3.8-27B-NVFP4`" in err
    assert "`sparkfleet plan unsloth/Qwen3.8-27B-NVFP4`" in err


def test_a_name_that_no_file_can_have_is_an_error_in_words(entered):
    code, _, err = entered("plan", "x" * 300)
    assert code == 1
    assert err.startswith("error: xxx")


@pytest.mark.parametrize("argv", [["version"], ["version", "--json"], ["help", "plan"]], ids=" ".join)
def test_a_full_disk_is_an_error_in_words(argv):
    """Output is buffered until the command ends: Python's own flush made an exit code of 120 of it."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [str(Path(sys.executable).parent / "sparkfleet"), *argv],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr


def test_an_error_keeps_its_exit_code_if_its_document_cannot_be_written():
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [str(Path(sys.executable).parent / "sparkfleet"), "plan", "none.yaml", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: none.yaml: no such file.")
    assert "Exception" not in done.stderr


def test_a_file_that_may_not_be_used(monkeypatch, capsys):
    assert outcome(monkeypatch, PermissionError(errno.EACCES, "Permission denied", "/srv/links.json")) == 1
    assert capsys.readouterr().err.startswith("error: /srv/links.json: Permission denied.\n")


def test_other_errors_of_the_system_are_not_hidden(monkeypatch):
    with pytest.raises(ConnectionRefusedError):
        outcome(monkeypatch, ConnectionRefusedError(errno.ECONNREFUSED, "refused"))


def test_a_terminal_without_our_signs(tmp_path):
    done = sparkfleet("explain", "no·rule", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, 'error: no rule is called "no?rule".')


@pytest.mark.parametrize("verb", list(verbs.VERBS))
def test_every_verb_has_its_help(verb, entered):
    code, _, err = entered(verb, "--help")
    assert (code, err) == (0, "")


WORDS_FOR_USERS = ("cli", "fleet", "controlplane", "specs")


def test_no_message_shows_a_name_as_python_would():
    """`"x"` as everywhere, not `'x'`: `specs.fields.quote`. Unexpected exceptions are shown with their class."""
    found = [
        f"{path}:{part.lineno}"
        for package in WORDS_FOR_USERS
        for path in (Path(verbs.__file__).parents[1] / package).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and "Error" in ast.unparse(call.func)
        for part in ast.walk(call)
        if isinstance(part, ast.FormattedValue)
        and part.conversion == ord("r")
        and ast.unparse(part.value) != "error"
    ]
    assert found == []


def test_version_is_an_option_too():
    done = sparkfleet("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"sparkfleet {__version__}\n", "")


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["-V"], f"sparkfleet {__version__}\n"),
        (["ps", "--help"], "Show the nodes"),
        (["help"], "Show what `apply` would do"),
    ],
)
def test_habits_of_the_fingers(entered, argv, shown):
    code, out, err = entered(*argv)
    assert (code, err) == (0, "")
    assert shown in out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("stop", "'down', 'delete', 'unload'"),
        ("run", "'apply'"),
        ("ls", "'status', 'describe'"),
        ("join", "'init', 'up'"),
        ("reboot", "'drain'"),
    ],
)
def test_a_verb_of_another_program_gets_the_one_that_is_meant(entered, typed, meant):
    """The nearest spellings are `top`, `prune` and `logs`."""
    code, _, err = entered(typed)
    assert code == 1
    assert f"No such command '{typed}'. Did you mean {meant}?" in err


def test_habits_are_no_verbs_and_mean_verbs():
    assert not verbs.HABITS.keys() & (verbs.VERBS.keys() | verbs.ALIASES.keys())
    assert {one.split()[0] for meant in verbs.HABITS.values() for one in meant} <= verbs.VERBS.keys()


def test_help_of_a_verb(entered):
    code, out, _ = entered("help", "scale")
    assert code == 0
    assert "Number of engine instances" in out
    assert "--engine" not in out


def test_help_of_a_verb_of_a_group(entered):
    """`unexpected argument`."""
    code, out, _ = entered("help", "fabric", "plan")
    assert code == 0
    assert "Show the planned addresses of the rails" in " ".join(out.split())
    assert entered("help", "fabric", "nope")[2].splitlines()[1] == "`sparkfleet help fabric` lists them."
    assert (
        entered("help", "fabric", "plan", "x")[2].splitlines()[0] == 'error: "fabric plan" has no verb "x".'
    )


@pytest.mark.parametrize(
    ("argv", "verb"),
    [(["plan", "--nope", "--json"], " plan"), (["keys", "create", "--json"], " keys create")],
)
def test_a_wrong_command_line_has_a_remedy_for_programs(entered, monkeypatch, argv, verb):
    monkeypatch.setattr(sys, "argv", ["sparkfleet", *argv])
    code, out, _ = entered(*argv)
    assert code == 1
    do = json.loads(out)["error"]["do"]
    assert do.startswith(f"For example: `sparkfleet{verb} ")
    assert do.endswith(f". `sparkfleet{verb} --help` prints the arguments and options.")


def test_help_of_a_verb_that_does_not_exist(entered):
    code, _, err = entered("help", "nope")
    assert (code, err.splitlines()[0]) == (1, 'error: There is no verb "nope".')

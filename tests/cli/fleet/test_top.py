"""`sparkfleet top` where it cannot draw. The view itself: tests/cli/live."""

import subprocess
import sys


def test_without_a_terminal_it_names_the_verb_for_programs(sparkfleet):
    code, out, err = sparkfleet("top")
    assert (code, out) == (1, "")
    assert "needs a terminal" in err
    assert "`sparkfleet status --json`" in err


def test_without_its_extra_it_names_the_command(sparkfleet, monkeypatch):
    monkeypatch.setattr("sparkfleet.cli.fleet.top.find_spec", lambda name: None)
    code, _, err = sparkfleet("top")
    assert code == 1
    assert "pip install 'sparkfleet[top]'" in err
    assert "`sparkfleet status --watch`" in err


def test_no_other_verb_imports_textual():
    code = (
        "import sys; import sparkfleet.cli.verbs as v; [verb.load() for verb in v.VERBS.values()];"
        " print('textual' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

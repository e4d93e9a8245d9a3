"""`sparkfleet demo` on a fake fleet: the question, its answer, where the time went, and how to go on."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.fleet import demo as module


class Session:
    """A fleet of this machine that serves already."""

    inventory = SimpleNamespace(fleet="demo-test", nodes={"this": SimpleNamespace(is_local=True)})

    async def controller(self):
        return SimpleNamespace(address=SimpleNamespace(endpoint="http://127.0.0.1:8000/v1"))


@pytest.fixture
def asked():
    """The questions: model, text, key, most tokens."""
    return []


@pytest.fixture
def demo(asked, sparkfleet, monkeypatch, tmp_path):
    """demo(exit code of apply, *arguments) → (exit code, stdout, stderr)."""
    clock = [0.0]

    async def key(_):
        clock[0] += 1
        return "sk-sf-1"

    async def answer(_, model, question, key, most):
        clock[0] += 2
        asked.append((model, question, key, most))
        print("It is a small computer.")

    def demo(code, *arguments):
        async def serve(_):
            clock[0] += 40
            return code

        monkeypatch.setattr(module, "_serve", serve)
        return sparkfleet("demo", *arguments)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path))
    monkeypatch.setattr(module, "require_packages", lambda: None)
    monkeypatch.setattr(module, "open_session", lambda _: Session())
    monkeypatch.setattr(module, "demo_key", key)
    monkeypatch.setattr(module, "print_answer", answer)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return demo


def test_the_answer_comes_with_where_the_time_went(demo, asked):
    code, out, _ = demo(Exit.DONE, "--installed-s", "90")
    assert code == Exit.DONE
    assert asked == [("tiny", "What is a DGX Spark?", "sk-sf-1", 256)]
    assert 'sparkfleet ask tiny "What is a DGX Spark?"' in out
    assert "First answer after 133 s: installing 90 s, apply 40 s, key and answer 3 s." in " ".join(
        out.split()
    )
    assert out.index("It is a small computer.") < out.index("First answer after")
    assert re.search(r"curl http://127\.0\.0\.1:8000/v1/chat/completions .*/demo-test/demo\.key", out)
    assert re.search(r"^  \S+ down$", out, re.MULTILINE)
    assert Path("inventory.yaml").exists(), "a fleet of this machine"


@pytest.mark.parametrize(
    ("typed", "program"),
    [
        ("/opt/sparkfleet", "/opt/sparkfleet"),
        ("/x/sparkfleet/__main__.py", f"{sys.executable} -m sparkfleet"),
    ],
)
def test_the_program_can_be_typed_as_it_was(monkeypatch, typed, program):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(module.sys, "argv", [typed, "demo"])
    assert f"  {program} status\n" in module._hints("http://h/v1", Path("k"), module.DEFAULT_INVENTORY)


def test_what_could_not_be_served_is_not_asked(demo, asked):
    code, out, _ = demo(Exit.ERROR)
    assert code == Exit.ERROR
    assert asked == []
    assert "First answer" not in out

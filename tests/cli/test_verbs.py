"""Verbs: their lines of help, and what is imported for each."""

import inspect
import os
import pkgutil
import re
import subprocess
import sys

import pytest
import typer

from sparkfleet import __version__, group
from sparkfleet.cli import verbs


@pytest.mark.parametrize("verb", list(verbs.VERBS))
def test_the_line_of_help_is_that_of_the_verb(verb):
    target = verbs.VERBS[verb].load()
    text = target.info.help if isinstance(target, typer.Typer) else inspect.getdoc(target)
    assert verbs.VERBS[verb].help == " ".join(text.split("\n\n")[0].split())


def test_the_help_shows_the_verbs_in_groups_and_each_once():
    _, output = loaded("--help", COLUMNS="100")
    titles = [output.index(f"─ {panel} ─") for panel in verbs.VerbPanel]
    assert titles == sorted(titles)
    for name in verbs.VERBS:
        assert len(re.findall(rf"^│ {name} ", output, re.MULTILINE)) == 1, name


def loaded(*argv, **env):
    """Modules that a command line has imported, and its output."""
    code = (
        "import sys\n"
        "from sparkfleet.cli.main import main\n"
        f"sys.argv = ['sparkfleet', *{argv!r}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(' '.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    return set(done.stderr.split()), done.stdout


LIGHT = {
    "",
    ".errors",
    ".cli",
    ".cli.main",
    ".cli.verb_group",
    ".cli.verbs",
    ".cli.exit_codes",
    ".cli.interrupted",
    ".cli.loading",
}


@pytest.mark.parametrize(
    ("argv", "env", "shown"),
    [
        (["--version"], {}, f"sparkfleet {__version__}"),
        (["--help"], {}, "Show what `apply` would do"),
        (
            [],
            {"_SPARKFLEET_COMPLETE": "complete_bash", "COMP_WORDS": "sparkfleet in", "COMP_CWORD": "1"},
            "inspect",
        ),
    ],
    ids=["--version", "--help", "completion"],
)
def test_lists_of_verbs_import_no_verb(argv, env, shown):
    modules, output = loaded(*argv, **env)
    assert shown in output
    assert {name for name in modules if name.split(".")[0] == "sparkfleet"} == {
        f"sparkfleet{name}" for name in LIGHT
    }
    assert modules.isdisjoint({"ray", "torch", "numpy", "yaml", "paramiko"})


SLOW = ("ray", "torch", "aiohttp", "paramiko", "cryptography", "huggingface_hub")
"""Libraries that need 0.1 s and more: a verb loads them when it connects to something."""

UNUSED = (
    "sparkfleet.controlplane.state.store",
    "sparkfleet.fleet.storage.stage",
    "sparkfleet.fleet.planning.dry_run",
)
"""Of the controller, or of what follows the plan that `apply` shows."""


def test_verbs_import_nothing_that_their_first_output_does_not_need_and_no_slow_library():
    code = (
        "import sys\n"
        "from sparkfleet.cli.verbs import VERBS\n"
        "for name in ('apply', 'doctor', 'plan', 'restore', 'status'): VERBS[name].load()\n"
        f"print(*(name for name in {UNUSED!r} if name in sys.modules))\n"
        "for verb in VERBS.values(): verb.load()\n"
        f"print(*(name for name in {SLOW!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


IDLE = (
    *(
        "sparkfleet.controlplane.api",
        "sparkfleet.controlplane.state.status",
        "sparkfleet.controlplane.state.store_rows",
    ),
    *("sparkfleet.engines", "sparkfleet.gateway.routing_table", "sparkfleet.telemetry"),
    # The plan names groups in its messages, so the module of their names is left.
    *(
        f"sparkfleet.group.{one.name}"
        for one in pkgutil.iter_modules(group.__path__)
        if one.name != "group_name"
    ),
    *("sparkfleet.fabric.measure", "sparkfleet.hostfacts.network.netdev", "sparkfleet.fleet.node_programs"),
    *("sparkfleet.fleet.report.outcome", "sparkfleet.cli.progress", "rich.live"),
)
"""Of a controller that answers, of measuring, or of what follows the plan: with the modules and packages below them."""


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_a_plan_for_a_fleet_that_is_down_imports_nothing_of_one_that_is_up(tmp_path, verb):
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    (tmp_path / "tiny.yaml").write_text("name: tiny\nmodel: builtin:tiny\n")
    modules, output = loaded(
        verb,
        *(str(tmp_path / "tiny.yaml"), "--offline"),
        SPARKFLEET_INVENTORY=str(tmp_path / "inventory.yaml"),
        SPARKFLEET_HOME=str(tmp_path / "state"),
    )
    assert "verdict " in output, "it was planned"
    unused = {name for name in modules if f"{name}.".startswith(tuple(f"{one}." for one in (*IDLE, *SLOW)))}
    assert unused == set()


def test_pydantic_looks_for_no_plugins():
    """It would read the metadata of every installed package."""
    code = (
        "import os, sys\n"
        "from sparkfleet.cli.main import main\n"
        "sys.argv = ['sparkfleet', '--version']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import importlib.metadata as metadata\n"
        "def refuse(**_): raise AssertionError('looks for plugins')\n"
        "metadata.entry_points = refuse\n"
        "from sparkfleet.specs.deployment import Deployment\n"
        "Deployment(name='a', model='builtin:tiny')\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_no_garbage_is_collected_while_a_verb_loads():
    """Each collection looks through the modules that are loaded already: it was a fifth of the time."""
    code = (
        "import gc, sys\n"
        "from sparkfleet.cli.main import main\n"
        "def collected(): return sum(one['collections'] for one in gc.get_stats())\n"
        "before = collected()\n"
        "sys.argv = ['sparkfleet', 'plan', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(collected() - before, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stderr) <= 1


def test_version_loads_no_use_case():
    modules, output = loaded("version")
    assert output == f"sparkfleet {__version__}\n"
    assert not [name for name in modules if name.startswith(("sparkfleet.fleet", "sparkfleet.specs"))]

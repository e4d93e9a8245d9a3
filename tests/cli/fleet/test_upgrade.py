"""The question of `sparkfleet upgrade`."""

from types import SimpleNamespace

import pytest

from sparkfleet import __version__
from sparkfleet.cli.fleet import upgrade
from sparkfleet.fleet.lifecycle.upgrade import Upgraded, UpgradePlan


@pytest.mark.parametrize(
    ("former", "words"),
    [
        ("0.0.9", f"Upgrade fleet home from sparkfleet 0.0.9 to {__version__} on 1 node? Engines go on"),
        (
            __version__,
            f"Fleet home runs sparkfleet {__version__} already. Change to this build of it on 1 node",
        ),
    ],
)
def test_the_version_that_runs_already_is_no_upgrade(former: str, words: str) -> None:
    """It asked to upgrade "from 0.1.0 to 0.1.0", and changed nothing."""
    session = SimpleNamespace(inventory=SimpleNamespace(fleet="home", nodes={"a": None}))
    plan = UpgradePlan(former, {"a": None}, frozenset())
    assert upgrade._question(session, plan).startswith(words)


def test_an_environment_of_the_owner_is_named_if_nothing_changed() -> None:
    """A command of another build was sent to `upgrade`, which had nothing to install there and named no way out."""
    same = Upgraded(__version__, __version__, changed=False)
    assert upgrade._lines(same, 2, None) == [
        f"Every node runs sparkfleet {__version__} already. `--force` starts them again."
    ]
    assert "`sparkfleet upgrade --force`" in upgrade._lines(same, 2, "/opt/venv/bin/python")[1]
    assert "/opt/venv/bin/python, the `environment:`" in upgrade._lines(same, 2, "/opt/venv/bin/python")[1]


def test_what_is_on_demand_and_loaded_is_named_as_unloaded() -> None:
    """The upgrade waited 90 s for its group, and said that it starts again."""
    session = SimpleNamespace(inventory=SimpleNamespace(fleet="home", nodes={"a": None}))
    plan = UpgradePlan("0.0.9", {"a": None}, frozenset(), ("coder",))
    assert upgrade._question(session, plan).endswith(
        "coder is on demand, and is unloaded: the next request starts a new engine."
    )

"""`sparkfleet observe`: its words."""

import pytest
from fake_channel import FakeChannel

from sparkfleet.fleet.node_access import NodeAccess
from sparkfleet.remote.channel import Completed
from sparkfleet.telemetry.observe_containers import ObserveHost

NAMES = "sparkfleet-home-prometheus\nother\n"


class Head(FakeChannel):
    """A head with podman, and one container of the fleet or none."""

    def __init__(self, listed):
        super().__init__("a")
        self.listed = listed

    async def run(self, argv, **more):
        if argv[:2] == ("podman", "rm"):
            self.listed = self.listed.replace(f"{argv[-1]}\n", "")
        out = {"sh": "1000\n1000\n" if "id -u" in argv[-1] else "podman\n"}.get(argv[0], self.listed)
        return Completed(argv=tuple(argv), exit_code=0, stdout=out, stderr="")


@pytest.mark.parametrize(("listed", "words"), [(NAMES, "Stopped."), ("other\n", "No change: none of these")])
def test_down_without_any_is_no_change(sparkfleet, monkeypatch, tmp_path, listed, words):
    """It printed `Stopped.` when there was nothing to stop."""
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    head = Head(listed)
    monkeypatch.setattr(NodeAccess, "channels", property(lambda self: {"a": head}))
    code, out, err = sparkfleet("observe", "down", "-i", file)
    assert (code, err) == (0, "")
    assert out.startswith(words)
    assert "prometheus" not in head.listed


def test_up_names_the_receivers_also_to_those_who_have_written_some(sparkfleet, monkeypatch, tmp_path):
    """It printed `No alert is sent yet` beside receivers that an owner had added."""
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    host = ObserveHost(tool="podman", fleet="home", uid=1000, gid=1000, root="/state")

    async def started(*_):
        return host

    monkeypatch.setattr("sparkfleet.cli.fleet.observe.observe_up", started)
    code, out, err = sparkfleet("observe", "up", "-i", file)
    assert (code, err) == (0, "")
    assert (
        "Alerts go to the receivers in /state/observe/alertmanager.yml on a, at first to none: edit it" in out
    )
    assert "No alert" not in out

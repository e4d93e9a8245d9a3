"""A simulated Spark on which a fleet was up, down and uninstalled has no file of ours."""

import pytest
from lab_fleet import LabFleet, lab_of

pytestmark = [pytest.mark.integration, pytest.mark.full]

OURS = r"find ~ /tmp /var/spool/cron /etc/systemd -xdev \( -name '*sparkfleet*' -o -name '*.ray*' \) 2>/dev/null; true"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with lab_of(1) as lab:
        yield LabFleet(lab, tmp_path_factory.mktemp("uninstall"))


def ours(fleet):
    """Files of sparkfleet that a node's user has, and lines of its crontab."""
    node = fleet.lab.nodes[0].name
    found = fleet.lab.exec(node, ["sh", "-c", f"{OURS}; crontab -l 2>/dev/null | grep sparkfleet"]).stdout
    return found.splitlines()


def test_what_serves_is_refused_and_after_down_nothing_is_left(fleet):
    before = ours(fleet)
    fleet.ok("up")
    up = ours(fleet)
    assert set(up) > set(before)
    code, _, err = fleet.run("uninstall", "--yes", "--caches")
    assert code == 1
    assert "`sparkfleet down`" in err
    assert set(up) <= set(ours(fleet)), "nothing was removed"
    assert fleet.status()["up"], "and it serves"
    fleet.ok("down")
    code, out, err = fleet.run("uninstall", "--caches")
    assert code == 1
    assert "needs a confirmation" in err
    assert "/.local/state/sparkfleet/" in out
    assert ours(fleet), "it was only shown"
    fleet.ok("uninstall", "--yes", "--caches")
    assert ours(fleet) == before
    assert "Nothing to remove" in fleet.ok("uninstall", "--yes", "--caches")

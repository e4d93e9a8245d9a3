"""What is left of a fleet that was brought down."""

from sparkfleet.control import boot
from sparkfleet.control.paths import FleetPaths
from sparkfleet.control.store import Store


async def test_what_was_starting_when_the_fleet_went_down_is_not_held_against_it(tmp_path):
    """Also where no controller had come up: whoever then switches the node off has not seen a start fail."""
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    store = Store(paths.database)
    store.begin_start(("tiny", 1, 0), {"this": "first"})
    await boot.down(paths)
    assert store.starts() == {}
    store.close()


async def test_another_node_than_the_head_gets_no_state(tmp_path):
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    await boot.down(paths)
    assert not paths.database.exists()

"""The JSON of a launch and its digest, which stay from release to release."""

import json

from launches import FLEET, desired, launches_for

from sparkfleet.group.group_launch import CUSTOM_DRAIN_S, GroupLaunch, launch_digest
from sparkfleet.planner.types.plan import GroupShape
from sparkfleet.specs.timeouts import Timeouts


def test_the_digest_of_a_plan_stays_from_release_to_release():
    """Another value here means that an upgrade starts every engine again."""
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a", "b"), tp=2)))
    assert launch_digest(launch, "secret") == "2454a7afbafd18b8"


def test_a_launch_of_an_earlier_release_is_read_and_its_names_are_written():
    """Ray Serve keeps what an application was deployed with, and starts it again after an upgrade."""
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a", "b"), tp=2)))
    stored = json.loads(launch.model_dump_json())
    assert [seat["meeting"]["leader"] for seat in stored["seats"]] == ["192.168.100.10"] * 2
    assert {"placements", "network"}.isdisjoint({*stored, *stored["seats"][0]})
    assert GroupLaunch.of_serve(json.dumps(stored | {"drain_s": 30.0})) == launch


def test_a_custom_workload_has_less_time_for_its_last_requests():
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a",))))
    launch = launch.model_copy(update={"timeouts": Timeouts(drain_s=900)})
    custom = launch.candidate.model_copy(update={"engine": "custom"})
    assert launch.drain_s == 900
    assert launch.model_copy(update={"candidate": custom}).drain_s == CUSTOM_DRAIN_S

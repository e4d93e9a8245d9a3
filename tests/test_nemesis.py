"""The faults of `scripts/soak`: a seed replays them, and every part of the catalogue has its turn."""

import random

from nemesis_faults import COMMANDS, FILES, HARMS, PROCESSES, choose


def faults(seed, count=2000):
    chooser = random.Random(seed)
    return [choose(chooser) for _ in range(count)]


def test_a_seed_replays_its_faults_and_another_has_others():
    assert faults(7) == faults(7)
    assert faults(7, 20) != faults(8, 20)


def test_everything_that_can_be_hit_is_hit():
    found = faults(1)
    processes = {(one.target, one.node, one.how) for one in found if one.kind == "process"}
    assert processes == {
        (target, node, how)
        for target, (_, nodes) in PROCESSES.items()
        for node in nodes
        for how in ("KILL", "STOP")
    }
    assert {(one.target, one.how) for one in found if one.kind == "file"} == {
        (name, how) for name in FILES for how in HARMS
    }
    assert {one.target for one in found if one.kind == "command"} == set(COMMANDS)
    assert {one.target for one in found if one.kind == "rail"} == {"rail 0", "rail 1", "both rails"}
    assert {one.how for one in found if one.kind == "power"} == {"reboot", "off"}


def test_a_stop_lasts_and_what_may_cost_an_engine_is_marked():
    for one in faults(2):
        if one.how == "STOP":
            assert 5 <= one.seconds <= 60
        if one.target in ("engine", "raylet", "power"):
            assert one.keeps == ()
        if one.target in ("gateway", "controller", "actor of pair"):
            assert one.keeps == ("pair", "alone")

import itertools
import math
import sqlite3

import pytest
from control_values import deployment, plan

from sparkfleet.controlplane.state import schema
from sparkfleet.controlplane.state.desired import Standing
from sparkfleet.controlplane.state.store import Store
from sparkfleet.controlplane.state.store_rows import desired_of
from sparkfleet.controlplane.state.tables import deployments
from sparkfleet.gateway.access.keys import generate, rotate
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.planner.rules.failure_memory import RememberedFailure


@pytest.fixture
def store(tmp_path):
    ticks = itertools.count(1)
    store = Store(tmp_path / "s.db", clock=lambda: float(next(ticks)))
    yield store
    store.close()


def test_what_is_asked_for_comes_back_after_a_restart(tmp_path, store):
    asked, changed = store.deployments.put(deployment(), plan(), "me")
    assert changed
    again = Store(tmp_path / "s.db")
    assert again.deployments.desired() == {"tiny": asked}
    again.close()


def test_the_same_again_is_no_change(store):
    first, _ = store.deployments.put(deployment(), plan(), "me")
    second, changed = store.deployments.put(deployment(), plan(), "somebody else")
    assert not changed
    assert second == first


def test_a_prediction_that_moved_is_no_change(store):
    store.deployments.put(deployment(), plan(high=1.0), "me")
    assert store.deployments.put(deployment(), plan(high=2.0), "me")[1] is False


def test_a_change_is_a_new_generation(store):
    store.deployments.put(deployment(), plan(), "me")
    second, changed = store.deployments.put(deployment(), plan(concurrency=8), "me")
    assert changed
    assert second.generation == 2


def test_a_generation_is_never_used_twice(store):
    store.deployments.put(deployment(), plan(), "me")
    assert store.deployments.remove("tiny")
    assert store.deployments.put(deployment(), plan(), "me")[0].generation == 2


def test_the_last_generation_that_served_is_one_of_which_every_group_was_ready(store):
    def put(concurrency, *ready, groups=1):
        one, _ = store.deployments.put(deployment(), plan(concurrency=concurrency, groups=groups), "me")
        for group in ready:
            store.events.record(
                "tiny", one.generation, f"tiny/g{one.generation}/{group}", "ready", "started in 3 s"
            )
        return store.deployments.last_served(one)

    assert put(1) is None
    assert put(2, 0) is None, "the first one was never ready"
    assert put(3, 0, groups=2).generation == 2
    assert put(4).generation == 2, "of two groups one was ready"
    assert put(5, 0).generation == 2
    assert put(6).generation == 5
    store.events.record("tiny", 6, "", "unwanted", "deleted by me")
    assert store.deployments.remove("tiny")
    assert put(7) is None, "what was deleted does not come back for what was applied since"
    assert put(8, 0) is None
    assert put(9).generation == 8


def test_removing_what_is_not_there(store):
    assert not store.deployments.remove("nothing")


def test_keys(store):
    _, key = generate("laptop")
    assert store.keys.add(key)
    assert not store.keys.add(generate("laptop")[1])
    assert store.keys.all() == (key,)
    assert store.keys.remove("laptop") == key
    assert store.keys.remove("laptop") is None
    assert store.keys.all() == ()


def test_limits_and_former_texts_of_keys_are_stored(tmp_path, store):
    _, key = generate("ci", KeyLimits(requests_per_minute=60, priority="batch", expires=2e9))
    assert store.keys.add(key)
    assert store.keys.all() == (key,)
    _, rotated = rotate(key, until=1e9, now=0.0)
    _, rotated = rotate(rotated, until=2e9, now=0.0)
    store.keys.change(rotated)
    assert store.keys.all() == (rotated,)
    assert store.keys.named(key.id) == store.keys.named("ci") == rotated
    assert store.keys.named("other") is None
    store.adopt((), (rotated,))  # from a node that keeps what is applied
    assert store.keys.all() == (rotated,)


def test_an_admin_key_is_stored_and_a_key_without_settings_is_readable_by_older_releases(store):
    rights = {
        "laptop": KeyLimits(),
        "boss": KeyLimits(admin=True),
        "page": KeyLimits(admin=True, inference=False),
    }
    for name, limits in rights.items():
        store.keys.add(generate(name, limits)[1])
    stored = store.keys.all()
    assert {key.name: key.limits for key in stored} == rights
    rows = dict(store._db.execute("SELECT name, settings FROM keys").fetchall())
    assert rows == {
        "laptop": "{}",
        "boss": '{"limits":{"admin":true}}',
        "page": '{"limits":{"admin":true,"inference":false}}',
    }


def test_the_last_generation_of_what_was_deleted_is_there(store):
    assert store.deployments.stopped() == ()
    store.deployments.put(deployment(), plan(), "me")
    store.deployments.put(deployment(), plan(concurrency=8), "me")
    assert store.deployments.stopped() == ()
    store.deployments.remove("tiny")
    (one,) = store.deployments.stopped()
    assert (one.name, one.generation) == ("tiny", 2)
    store.deployments.put(one.spec, one.plan, "me")
    assert store.deployments.stopped() == ()


def test_keys_of_an_older_store_have_no_limits(tmp_path):
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as db:
        db.executescript("".join(schema.SCHEMAS[:7]))
        db.execute("INSERT INTO keys (id, name, sha256, since) VALUES ('key-1', 'laptop', 'aa', 1.0)")
        db.execute("PRAGMA user_version = 7")
    (key,) = Store(path).keys.all()
    assert (key.name, key.limits, key.former) == ("laptop", KeyLimits(), None)


def test_a_key_is_not_in_the_file(tmp_path, store):
    text, key = generate("laptop")
    store.keys.add(key)
    store.close()
    assert text.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_events_in_order_after_a_mark(store):
    first = store.events.record("a", 1, "", "wanted", "")
    second = store.events.record("b", 1, "b/g1/0", "ready", "started in 3 s")
    assert store.events.read() == (first, second)
    assert store.events.read(after=first.id) == (second,)
    assert store.events.read(deployment="a") == (first,)
    assert store.events.last_id() == second.id


def test_events_do_not_pile_up_for_ever(tmp_path):
    store = Store(tmp_path / "few.db", keep_events=3)
    written = [store.events.record("a", 1, "", "beat", "") for _ in range(5)]
    assert store.events.read() == tuple(written[-3:])
    store.close()


def test_what_a_start_was_doing_pushes_out_nothing_else(store, monkeypatch):
    monkeypatch.setattr("sparkfleet.controlplane.state.tables.events.KEEP_PROGRESS", 2)
    for kind in ("failed", "progress", "progress", "progress", "ready"):
        store.events.record("a", 1, "", kind, "")
    assert [event.kind for event in store.events.read()] == ["failed", "progress", "progress", "ready"]


def test_where_a_group_stands_comes_back_after_a_restart(tmp_path, store):
    store.deployments.put(deployment(), plan(), "me")
    standing = Standing(rung=2, tries=1, given_up=True, restarts=2, falls=(1.5,), passed=("a", "b"))
    store.groups.set_standing("tiny", 1, 0, standing)
    store.groups.begin_start(("tiny", 1, 1), {"this": "first", "that": ""})
    again = Store(tmp_path / "s.db")
    assert again.groups.standings() == {("tiny", 1, 0): standing}
    assert again.groups.starts() == {("tiny", 1, 1): {"this": "first", "that": ""}}
    again.close()


def test_what_does_not_start_is_remembered_as_long_as_it_lasts(store):
    """The clock ticks once a second, with every look at it."""
    store.failures.remember("for ever", "known issue", math.inf)
    store.failures.remember("short", "unknown", 3.0)
    assert store.failures.all() == (
        RememberedFailure(fingerprint="for ever", words="known issue"),
        RememberedFailure(fingerprint="short", words="unknown", until=5.0),
    )
    store.failures.remember("other", "unknown", 2.0)
    assert [one.fingerprint for one in store.failures.all()] == ["for ever", "other"]
    store.failures.forget("for ever")
    assert store.failures.all() == ()


def test_the_newest_of_its_kind_counts(store):
    store.failures.remember("one", "known issue", math.inf)
    store.failures.remember("one", "unknown", 10.0)
    assert store.failures.all() == (RememberedFailure(fingerprint="one", words="unknown", until=12.0),)


def test_what_is_asked_for_once_more_begins_anew(store):
    store.deployments.put(deployment(), plan(), "me")
    second, changed = store.deployments.put(deployment(), plan(), "me", retry=True)
    assert (second.generation, changed) == (2, True)


def test_an_older_group_keeps_its_start_and_its_position_until_it_is_forgotten(store):
    """It serves while the newer one starts, and its starts count as long."""
    older, newer = ("tiny", 1, 0), ("tiny", 2, 0)
    for group in (older, ("other", 1, 0), newer):
        store.groups.begin_start(group, {"this": "first"})
        store.groups.set_standing(*group, Standing(tries=1))
    assert older in store.groups.starts()
    assert older in store.groups.standings()
    store.groups.forget(older)
    assert sorted(store.groups.starts()) == sorted(store.groups.standings()) == [("other", 1, 0), newer]


def test_a_file_of_an_older_version_is_brought_up_to_date(tmp_path):
    with sqlite3.connect(tmp_path / "old.db") as db:
        db.executescript("".join(schema.SCHEMAS[:2]))
        db.execute("INSERT INTO rungs VALUES ('tiny', 1, 0, 2, 1)")
        db.execute("INSERT INTO failures VALUES ('abc', 'this', 'transient: a peer was gone', 1.0)")
        db.execute("PRAGMA user_version = 2")
    db.close()
    store = Store(tmp_path / "old.db")
    assert store.groups.standings() == {("tiny", 1, 0): Standing(rung=2, tries=1)}
    assert store.groups.starts() == {}
    assert store.failures.all() == (), "nobody knows which of them last"
    store.close()


def test_what_an_older_version_gave_up_stays_given_up(tmp_path):
    with sqlite3.connect(tmp_path / "old.db") as db:
        db.executescript("".join(schema.SCHEMAS[:3]))
        db.execute("INSERT INTO rungs VALUES ('tiny', 1, 1, 2, 1, 1)")
        db.execute("PRAGMA user_version = 3")
    db.close()
    store = Store(tmp_path / "old.db")
    assert store.groups.standings() == {("tiny", 1, 1): Standing(rung=2, tries=1, given_up=True)}
    store.close()


def test_uses_of_keys_are_stored_after_the_clock_was_set_back(tmp_path, clock):
    """They were not, for as long as it had been set back."""
    store = Store(tmp_path / "s.db", clock=clock)
    _, key = generate("ci")
    store.keys.add(key)
    clock.now = 10_000.0
    store.keys.use({key.id: clock.now})
    store.keys.use({key.id: 9_000.0})  # of a gateway that has not seen it for a while
    assert store.keys.used() == {key.id: 10_000.0}
    clock.now = 6_400.0
    store.keys.use({key.id: clock.now})
    assert store.keys.used() == {key.id: 6_400.0}
    store.close()


def test_events_of_an_older_store_are_kept_and_measurements_that_nothing_reads_are_not(tmp_path):
    with sqlite3.connect(tmp_path / "old.db") as db:
        db.executescript("".join(schema.SCHEMAS[:10]))
        db.execute("INSERT INTO measurements VALUES (1, 1.0, 'tiny', 1, 'tiny/g1/0', 'ttft_ms', 12.5)")
        db.execute(
            "INSERT INTO events VALUES (7, 1.0, 'tiny', 1, 'tiny/g1/0', 'ready', 'measured TTFT 12 ms')"
        )
        db.execute("PRAGMA user_version = 10")
    db.close()
    store = Store(tmp_path / "old.db")
    assert [(event.id, event.message) for event in store.events.read()] == [(7, "measured TTFT 12 ms")]
    assert store.events.of_request("") is None
    tables = store.execute("SELECT name FROM sqlite_master WHERE name LIKE 'measurements%'")
    assert tables.fetchall() == []
    store.close()


def test_a_file_of_a_newer_version_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "new.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(sqlite3.DatabaseError, match="newer sparkfleet"):
        Store(tmp_path / "new.db")


def test_a_disk_that_is_full_for_a_while_leaves_the_store_usable(tmp_path):
    store = Store(tmp_path / "s.db")
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    who = "me" * 50_000
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.deployments.put(deployment(), plan(), who)
    assert store.deployments.desired() == {}
    store._db.execute("PRAGMA max_page_count = 100000")
    assert store.deployments.put(deployment(), plan(), who)[0].generation == 1
    store.close()


def test_drained_groups_are_kept_in_their_order_and_over_a_restart(store):
    first, second = ("tiny", 1, 0), ("tiny", 1, 1)
    assert [store.drains.drain_group(group, "me") for group in (second, first, second)] == [True, True, False]
    assert [(one.group, one.name, one.who) for one in store.drains.groups()] == [
        (second, "tiny/g1/1", "me"),
        (first, "tiny/g1/0", "me"),
    ]
    assert [store.drains.undrain_group(second) for _ in range(2)] == [True, False]
    again = Store(store.path)
    assert [one.group for one in again.drains.groups()] == [first]
    again.close()


def undrain_and_fail(store):
    with store.together():
        store.drains.undrain("a")
        assert store.drains.nodes() == ()
        raise RuntimeError


def test_answers_that_are_kept_follow_every_write_and_every_one_that_is_taken_back(store):
    group, standing = ("tiny", 1, 0), Standing(rung=1)
    assert (store.groups.standings(), store.groups.starts(), store.drains.nodes(), store.keys.all()) == (
        {},
        {},
        (),
        (),
    )
    store.groups.set_standing(*group, standing)
    store.groups.begin_start(group, {"a": "boot"})
    store.drains.drain("a", "me")
    _, key = generate("me")
    store.keys.add(key)
    assert (store.groups.standings(), store.groups.starts()) == ({group: standing}, {group: {"a": "boot"}})
    assert ([one.node for one in store.drains.nodes()], store.keys.all()) == (["a"], (key,))
    with pytest.raises(RuntimeError):
        undrain_and_fail(store)
    assert [one.node for one in store.drains.nodes()] == ["a"]
    store.groups.standings().clear()
    store.groups.starts()[group].clear()
    assert (store.groups.standings(), store.groups.starts()) == ({group: standing}, {group: {"a": "boot"}})


def put_and_fail(store):
    with store.together():
        store.deployments.put(deployment(), plan(), "me")
        assert list(store.deployments.desired()) == [one.name for one in store.deployments.history("tiny")]
        raise RuntimeError


def test_documents_of_a_transaction_that_is_taken_back_are_read_again(store):
    with pytest.raises(RuntimeError):
        put_and_fail(store)
    assert (store.deployments.desired(), store.deployments.history("tiny")) == ({}, ())
    assert store.identity().changes == 0


def test_an_adoption_that_fails_changes_nothing(store):
    desired, _ = store.deployments.put(deployment(), plan(), "me")
    store.groups.begin_start(("tiny", 1, 0), {"a": "boot"})
    _, key = generate("mine")
    store.keys.add(key)
    other = desired.model_copy(update={"generation": 7})
    with pytest.raises(sqlite3.IntegrityError):
        store.adopt([other], [generate("twice")[1], generate("twice")[1]])
    assert store.deployments.desired() == {"tiny": desired}
    assert store.deployments.generations() == {"tiny": 1}
    assert (list(store.groups.starts()), store.keys.all()) == ([("tiny", 1, 0)], (key,))


def test_of_deleted_deployments_only_the_last_generation_is_read_and_only_once(store, monkeypatch):
    for name in ("a", "b"):
        for n in range(3):
            store.deployments.put(deployment(name), plan(name, concurrency=n + 1), "me")
        store.deployments.remove(name)
    read = []

    def counted(row):
        read.append(row)
        return desired_of(row)

    monkeypatch.setattr(deployments, "desired_of", counted)
    assert [(one.name, one.generation) for one in store.deployments.stopped()] == [("a", 3), ("b", 3)]
    assert len(read) == 2
    store.deployments.put(deployment("c"), plan("c"), "me")
    assert len(store.deployments.stopped()) == 2
    assert sum(row[2] == 3 for row in read) == 2, "not again after a change"


def test_generations_of_deleted_deployments_are_bounded_and_the_last_of_each_stays(store, monkeypatch):
    monkeypatch.setattr(deployments, "KEEP_DELETED", 3)
    for name in ("a", "b", "runs"):
        for n in range(3):
            store.deployments.put(deployment(name), plan(name, concurrency=n + 1), "me")
    store.deployments.remove("a")
    store.deployments.remove("b")
    kept = {name: [one.generation for one in store.deployments.history(name)] for name in ("a", "b", "runs")}
    assert kept == {"a": [3], "b": [1, 2, 3], "runs": [1, 2, 3]}

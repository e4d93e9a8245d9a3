"""The tables of the store, and their migration from older versions."""

from __future__ import annotations

import sqlite3

FIRST = """
CREATE TABLE deployments (
    name TEXT PRIMARY KEY, generation INTEGER NOT NULL, spec TEXT NOT NULL, plan TEXT NOT NULL,
    who TEXT NOT NULL, since REAL NOT NULL
) STRICT;
CREATE TABLE generations (name TEXT PRIMARY KEY, last INTEGER NOT NULL) STRICT;
CREATE TABLE keys (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, sha256 TEXT NOT NULL, since REAL NOT NULL) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, deployment TEXT NOT NULL, generation INTEGER NOT NULL,
    subject TEXT NOT NULL, kind TEXT NOT NULL, message TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_deployment ON events (deployment, id);
CREATE TABLE measurements (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, deployment TEXT NOT NULL, generation INTEGER NOT NULL,
    subject TEXT NOT NULL, name TEXT NOT NULL, value REAL NOT NULL
) STRICT;
"""

SECOND = """
CREATE TABLE rungs (
    name TEXT NOT NULL, generation INTEGER NOT NULL, replica INTEGER NOT NULL, rung INTEGER NOT NULL,
    tries INTEGER NOT NULL, PRIMARY KEY (name, generation, replica)
) STRICT;
CREATE TABLE failures (
    fingerprint TEXT NOT NULL, node TEXT NOT NULL, words TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (fingerprint, node)
) STRICT;
"""

THIRD = """
CREATE INDEX measurements_by_deployment ON measurements (deployment, id);
ALTER TABLE rungs ADD COLUMN given_up INTEGER NOT NULL DEFAULT 0;
CREATE TABLE starts (
    name TEXT NOT NULL, generation INTEGER NOT NULL, replica INTEGER NOT NULL, node TEXT NOT NULL,
    boot TEXT NOT NULL, PRIMARY KEY (name, generation, replica, node)
) STRICT;
"""

FOURTH = """
CREATE TABLE standings (
    name TEXT NOT NULL, generation INTEGER NOT NULL, replica INTEGER NOT NULL, standing TEXT NOT NULL,
    PRIMARY KEY (name, generation, replica)
) STRICT;
INSERT INTO standings SELECT name, generation, replica, json_object(
    'rung', rung, 'tries', tries, 'given_up', json(CASE given_up WHEN 0 THEN 'false' ELSE 'true' END)
) FROM rungs;
DROP TABLE rungs;
DROP TABLE failures;
CREATE TABLE failures (fingerprint TEXT PRIMARY KEY, words TEXT NOT NULL, until REAL) STRICT;
"""
"""Failures that older versions stored are dropped: those did not distinguish lasting causes from passing ones."""

FIFTH = """
ALTER TABLE deployments ADD COLUMN members TEXT NOT NULL DEFAULT '[]';
CREATE TABLE history (
    name TEXT NOT NULL, generation INTEGER NOT NULL, spec TEXT NOT NULL, plan TEXT NOT NULL, who TEXT NOT NULL,
    since REAL NOT NULL, members TEXT NOT NULL, PRIMARY KEY (name, generation)
) STRICT;
ALTER TABLE keys ADD COLUMN used REAL;
INSERT INTO history SELECT name, generation, spec, plan, who, since, '[]' FROM deployments;
"""

SIXTH = """
CREATE TABLE identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, fleet TEXT NOT NULL, changes INTEGER NOT NULL
) STRICT;
INSERT INTO identity VALUES (1, lower(hex(randomblob(16))), '', 0);
"""
"""Identity of the store: who it belongs to, and how often its desired state or its keys changed."""

SEVENTH = """
CREATE TABLE drained (node TEXT PRIMARY KEY, who TEXT NOT NULL, since REAL NOT NULL) STRICT;
"""

EIGHTH = """
ALTER TABLE keys ADD COLUMN settings TEXT NOT NULL DEFAULT '{}';
"""
"""Limits and the former digest of each key, JSON of KeySettings."""

NINTH = """
CREATE TABLE usage (
    day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, requests INTEGER NOT NULL, uncounted INTEGER NOT NULL,
    input INTEGER NOT NULL, output INTEGER NOT NULL, PRIMARY KEY (day, key, model)
) STRICT;
CREATE TABLE usage_marks (
    replica TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, requests INTEGER NOT NULL,
    uncounted INTEGER NOT NULL, input INTEGER NOT NULL, output INTEGER NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (replica, key, model)
) STRICT;
"""
"""Usage by day, and the totals of each gateway replica that are in it."""

TENTH = """
CREATE TABLE drained_groups (
    name TEXT NOT NULL, generation INTEGER NOT NULL, replica INTEGER NOT NULL, who TEXT NOT NULL, since REAL NOT NULL,
    PRIMARY KEY (name, generation, replica)
) STRICT;
"""

ELEVENTH = """
ALTER TABLE events ADD COLUMN request TEXT NOT NULL DEFAULT '';
DROP TABLE measurements;
"""
"""Id of the request that made a change, so that its repetition is recognised. Measurements were written and never read: the
report of a group has the present ones, and its `ready` event those of the start."""

TWELFTH = """
CREATE TABLE node_boots (node TEXT PRIMARY KEY, boot TEXT NOT NULL) STRICT;
"""
"""The boot of each node that was seen last: a power cut ends the controller as well."""

THIRTEENTH = """
CREATE TABLE draft_hours (
    hour INTEGER NOT NULL, deployment TEXT NOT NULL, setup TEXT NOT NULL, steps REAL NOT NULL, proposed REAL NOT NULL,
    accepted REAL NOT NULL, by_position TEXT NOT NULL, PRIMARY KEY (hour, deployment, setup)
) STRICT;
"""
"""Draft tokens of each deployment's requests by hour since 1970; the setup is JSON of DraftSetup."""

FOURTEENTH = """
CREATE TABLE bench_results (
    setup TEXT NOT NULL, load TEXT NOT NULL, result TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (setup, load)
) STRICT;
"""
"""Speeds that owners measured with `sparkfleet bench`, the newest of each setup and load: JSON of BenchSetup, BenchLoad and
BenchResult."""

SCHEMAS = (
    *(FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH, SEVENTH, EIGHTH, NINTH, TENTH, ELEVENTH, TWELFTH),
    *(THIRTEENTH, FOURTEENTH),
)
"""Changes of each version."""

IDENTITY_SINCE = 6
"""First version with an identity."""


class NewerSchemaError(sqlite3.DatabaseError):
    """A newer version of sparkfleet wrote the file."""


def migrate(db: sqlite3.Connection) -> None:
    """Creates missing tables. To be called in a transaction. Raises NewerSchemaError if a newer version wrote the file."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == len(SCHEMAS):
        return
    if version > len(SCHEMAS):
        raise NewerSchemaError(
            f"The state was written by a newer sparkfleet (schema {version}; this version supports {len(SCHEMAS)})."
        )
    for statement in ";".join(SCHEMAS[version:]).split(";"):
        if statement.strip():
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {len(SCHEMAS)}")

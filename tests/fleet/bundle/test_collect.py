"""A report of this machine, whose fleet is down: everything that can be read without a fleet."""

import json
import platform

from sparkfleet.doctor.collect import Question
from sparkfleet.fleet.bundle.archive import FOLDER
from sparkfleet.fleet.bundle.collect import FORMAT, HOST_NAME, MORE, collect
from sparkfleet.fleet.session import Session
from sparkfleet.hostfacts.network.rdma import ReadGidsOfKernel
from sparkfleet.lab.replay import bundle

INVENTORY = """
fleet: home
head: this
nodes:
  this: {address: local}
  other: {address: 127.0.0.9, port: 9, user: somebody, host_key: 'SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'}
"""


async def test_a_fleet_that_is_down_and_a_node_that_is_off_are_no_obstacle(tmp_path):
    file = tmp_path / "inventory.yaml"
    file.write_text(INVENTORY)
    async with Session(file) as session:
        found = await collect(session)
    content = {part.path: part.text for part in found.parts}
    assert json.loads(content["status.json"])["deployments"] == []
    facts = json.loads(content["nodes/this/facts.json"])
    assert [one["argv"] for one in facts if one["field"] == "kernel"]
    assert any(one["not_understood"] for one in facts), "this machine is no Spark"
    assert [line for line in found.missing if line.startswith("nodes/<node-1>: ")], found.missing
    assert "somebody" not in content["inventory.json"]
    assert "AAAAAAAA" not in content["inventory.json"]


async def test_commands_stay_word_by_word_and_outputs_of_the_planners_are_there(tmp_path):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: import\nnodes:\n  import: {address: local}\n")
    async with Session(file) as session:
        found = await collect(session)
    content = {part.path: part.text for part in found.parts}
    answers = json.loads(content["nodes/<node-1>/facts.json"])
    by_argv = {tuple(one["argv"]): one for one in answers}
    assert ReadGidsOfKernel.argv in by_argv, "a node named like a word of a command does not change it"
    assert {one.argv for one in MORE} <= set(by_argv)
    (processors,) = (one for one in answers if one["field"] == "processors")
    assert platform.machine() in processors["stdout"]
    assert by_argv["chronyc", "-n", "tracking"]["missing"] or by_argv["chronyc", "-n", "tracking"]["stdout"]


async def test_a_name_that_only_the_node_itself_has_is_replaced(tmp_path, monkeypatch):
    named = Question(HOST_NAME, ("echo", "spark-of-wilhelmina.lan"), lambda code, out, err: out)
    monkeypatch.setattr("sparkfleet.fleet.bundle.collect.MORE", (named,))
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    async with Session(file) as session:
        found = await collect(session)
    texts = "".join(part.text for part in found.parts)
    assert '"stdout": "<host-' in texts
    assert "wilhelmina" not in texts  # a bundle has titles of processes: of pytest the names of other tests


async def test_no_part_of_a_home_with_spaces_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/jürgen müller")
    named = Question("home", ("echo", "/home/jürgen müller/.cache"), lambda code, out, err: out)
    monkeypatch.setattr("sparkfleet.fleet.bundle.collect.MORE", (named,))
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    async with Session(file) as session:
        found = await collect(session)
    texts = "".join(part.text for part in found.parts)
    assert "/.cache" in texts
    assert "müller" not in texts
    assert "u00fc" not in texts, "in JSON that a program on the node has printed"


async def test_a_log_that_was_rotated_has_the_end_of_its_older_file_as_well(tmp_path, monkeypatch):
    """It had the few lines since the rotation only."""
    monkeypatch.setattr("sparkfleet.fleet.bundle.collect.LOG_BYTES", 40)
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path))
    logs = tmp_path / "home" / "logs"
    logs.mkdir(parents=True)
    (logs / "a.log.2").write_text("oldest\n")
    (logs / "a.log.1").write_text("".join(f"before {i}\n" for i in range(100)))
    (logs / "a.log").write_text("after\n")
    (logs / "b.log").write_text("never rotated\n")
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    async with Session(file) as session:
        found = await collect(session)
    texts = {part.path.rpartition("/")[2]: part.text for part in found.parts if "/logs/" in part.path}
    assert texts == {"a.log": "before 97\nbefore 98\nbefore 99\nafter\n", "b.log": "never rotated\n"}


def test_the_lab_reads_what_is_written():
    assert (bundle.FOLDER, bundle.FORMAT) == (FOLDER, FORMAT)


async def test_a_login_of_a_directory_service_is_replaced_without_its_domain_as_well(tmp_path, monkeypatch):
    """On the node it has none, unless its directory service is set up so."""
    owner = Question("owner", ("echo", "annika sparkfleet annika@corp.example"), lambda code, out, err: out)
    monkeypatch.setattr("sparkfleet.fleet.bundle.collect.MORE", (owner,))
    file = tmp_path / "inventory.yaml"
    file.write_text(INVENTORY.replace("user: somebody", "user: annika@corp.example"))
    async with Session(file) as session:
        found = await collect(session)
    texts = "".join(part.text for part in found.parts)
    assert " sparkfleet <" in texts
    assert "annika" not in texts

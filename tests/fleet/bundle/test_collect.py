"""A report of this machine, whose fleet is down: everything that can be read without a fleet."""

import json

from sparkfleet.fleet.bundle.collect import collect
from sparkfleet.fleet.session import Session

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

"""Programs on the nodes of a fleet, whose output may have words of others."""

import pytest
from fake_channel import FakeChannel

from sparkfleet.errors import NodeError
from sparkfleet.fleet.node_access import NodeAccess
from sparkfleet.fleet.node_programs import NodePrograms
from sparkfleet.runtime.files.state_probe import keys
from sparkfleet.specs.load import parse_inventory

KEY = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
INVENTORY = parse_inventory(
    f'fleet: home\nhead: a\nnodes:\n  a: {{address: 10.0.0.2, user: u, host_key: "{KEY}"}}\n'
)


@pytest.mark.parametrize("printed", ["Welcome to DGX OS!\n{}\n", "", "[]"])
async def test_an_answer_with_words_of_a_login_script_is_an_error_of_the_node(printed):
    """It ended in a traceback."""
    access = NodeAccess(INVENTORY)
    access._opened = {"a": FakeChannel("a", {("python3",): printed, ("/opt/python",): printed})}
    with pytest.raises(NodeError, match="a: the answer of the node cannot be read") as caught:
        await access.probe("a", keys)
    assert "`ssh a true` prints nothing" in caught.value.do
    programs = NodePrograms(access)
    with pytest.raises(NodeError, match="a: the answer of the node cannot be read"):
        await programs._boot("a", "store", programs._up(), "/opt/python")

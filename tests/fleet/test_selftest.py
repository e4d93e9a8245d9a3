"""The start of a self-test; the whole of it runs in the lab (tests/integration/test_selftest.py)."""

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.fleet.selftest import selftest
from sparkfleet.fleet.session import Session


async def test_a_node_that_does_not_exist_is_refused(tmp_path):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    async with Session(file) as session:
        with pytest.raises(SpecError, match="moon"):
            async for _ in selftest(session, ["moon"]):
                pass

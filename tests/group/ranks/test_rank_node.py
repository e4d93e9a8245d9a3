"""Facts of a node that a rank needs. The command is tested with its launch: `test_launch_plan.py`."""

import pytest
from group_world import order

from sparkfleet.errors import Cause, NodeError
from sparkfleet.group.ranks import rank_node


async def test_a_tool_that_does_not_find_the_staged_image_for_now_is_not_taken_for_one_without_it(
    monkeypatch,
):
    asked = []

    async def tool_for(image):
        asked.append(image)
        raise NodeError("did not answer", because=Cause.TRANSIENT if len(asked) == 1 else Cause.MISSING)

    monkeypatch.setattr(rank_node, "tool_for", tool_for)
    image = "x.example/engine@sha256:" + "0" * 64
    launch = order()
    candidate = launch.candidate.model_copy(update={"runtime": "container", "image": image})
    with pytest.raises(NodeError) as caught:
        await rank_node.box_of(launch.model_copy(update={"candidate": candidate}))
    assert caught.value.because is Cause.TRANSIENT
    assert len(asked) == 1

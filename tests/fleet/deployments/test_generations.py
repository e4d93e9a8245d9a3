"""Generations to which a deployment cannot go back, in words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkfleet.errors import ControlError
from sparkfleet.fleet.deployments import generations as module


@pytest.mark.parametrize(
    ("kept", "now", "given", "what", "do"),
    [
        ([1], 1, None, "tiny has no earlier generation.", "kept beside the current one (1): none."),
        ([1, 2, 3], 3, 7, "tiny has no generation 7 to go", "kept beside the current one (3): 1, 2."),
        ([1, 2], 2, 2, "tiny has no generation 2 to go", "kept beside the current one (2): 1."),
        ([1, 2], None, 7, "tiny has no generation 7 to go", "Generations that are kept: 1, 2."),
    ],
)
async def test_a_generation_that_is_not_kept(monkeypatch, kept, now, given, what, do):
    async def history(session, name):
        status = None if now is None else SimpleNamespace(generation=now)
        return SimpleNamespace(
            status=status, generations=[SimpleNamespace(generation=number) for number in kept]
        )

    monkeypatch.setattr(module, "history_of", history)
    with pytest.raises(ControlError) as caught:
        await module.prepare_rollback(SimpleNamespace(), "tiny", given)
    assert caught.value.what.startswith(what)
    assert do in caught.value.do
    assert "`sparkfleet history tiny` shows them." in caught.value.do

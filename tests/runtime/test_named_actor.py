"""The look-up of an actor while Ray's GCS hangs."""

import asyncio
import threading
import time

import pytest
import ray

from sparkfleet.runtime.named_actor import NamedActor


@pytest.fixture
def gcs(monkeypatch):
    """Look-ups hang until it is set."""
    answers, calls = threading.Event(), []

    def get_actor(name, namespace):
        calls.append((name, namespace))
        answers.wait(10.0)
        if name == "none":
            raise ValueError("no such actor")
        return f"the {name}"

    monkeypatch.setattr(ray, "get_actor", get_actor)
    answers.calls = calls
    yield answers
    answers.set()


async def test_a_gcs_that_hangs_costs_one_thread_and_no_step_of_the_loop(gcs):
    actor = NamedActor("controller", "fleet")
    begun = time.monotonic()
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await actor.find()
    assert time.monotonic() - begun < 5.0
    assert gcs.calls == [("controller", "fleet")]
    gcs.set()
    assert await actor.find() == "the controller"
    assert await actor.find() == "the controller"
    assert len(gcs.calls) == 2


async def test_an_actor_that_does_not_exist_is_looked_up_again(gcs):
    gcs.set()
    actor = NamedActor("none", "fleet")
    for _ in range(2):
        with pytest.raises(ValueError, match="no such actor"):
            await actor.find()
    assert len(gcs.calls) == 2

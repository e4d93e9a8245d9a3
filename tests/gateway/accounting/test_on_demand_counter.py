"""Use of models on demand: what is in flight, and how long nobody has come."""

from sparkfleet.gateway.accounting.on_demand_counter import OnDemandCounter
from sparkfleet.gateway.report import OnDemandUse
from sparkfleet.gateway.routing_table import ModelEntry

DEMANDED = ModelEntry(name="a", deployment="engine", state="ready", on_demand=True)
OTHER = ModelEntry(name="b", deployment="engine", state="ready")
UNLOADED = DEMANDED.model_copy(update={"state": "unloaded"})


def test_only_models_on_demand_are_counted_and_idleness_begins_with_the_last_end():
    now = [100.0]
    counter = OnDemandCounter(lambda: now[0])

    def use(model):
        return counter.uses([model, OTHER], lambda name: 2)["a"]

    assert counter.uses([OTHER], lambda name: 2) == {}
    now[0] = 107.0
    assert use(DEMANDED) == OnDemandUse(idle_s=7.0), "nobody has come since the replica started"
    for model in (DEMANDED, DEMANDED, OTHER):
        counter.begin(model)
    now[0] = 150.0
    assert use(DEMANDED) == OnDemandUse(in_flight=2)
    assert use(UNLOADED) == OnDemandUse(in_flight=2, waiting=2), (
        "what waits for a slot of a loaded one does not count"
    )
    for model in (DEMANDED, OTHER, DEMANDED):
        counter.end(model)
    now[0] = 153.0
    assert use(DEMANDED) == OnDemandUse(idle_s=3.0)


def test_it_is_ready_since_the_table_first_had_it_so():
    now = [100.0]
    counter = OnDemandCounter(lambda: now[0])

    def ready_s(model):
        return counter.uses([model], lambda name: 0)["a"].ready_s

    counter.follow([UNLOADED, OTHER])
    assert ready_s(UNLOADED) is None
    now[0] = 110.0
    counter.follow([DEMANDED])
    now[0] = 130.0
    counter.follow([DEMANDED])
    assert ready_s(DEMANDED) == 20.0
    counter.follow([UNLOADED])
    counter.follow([DEMANDED])
    assert ready_s(DEMANDED) == 0.0

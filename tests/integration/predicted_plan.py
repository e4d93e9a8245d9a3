"""Applies a deployment once more as it is, with a plan that predicts its speed.

The planner predicts nothing for a CPU, and the engines of the lab are on CPUs. Everything after the plan takes this
prediction as it takes the planner's own: store, metrics, rules, alerts, page.

Run as a program on the head of a fleet: name, and the lower ends of tok/s of one stream and of all. It prints the
generation.
"""

import asyncio
import sys
from pathlib import Path

from sparkfleet.controlplane.api.api_models import ApplyRequest
from sparkfleet.controlplane.api.client import connect
from sparkfleet.perf.prediction import Band
from sparkfleet.runtime.files.fleet_paths import FleetPaths

TTFT = Band(low=10, mid=100, high=10_000, basis="a test")
"""ms; nothing is too slow for it."""


def predicting(plan, alone, together, **more):
    """The plan with these speeds, tok/s, as the lower ends of what each rung is predicted to reach, and with other fields of
    its predictions."""
    update = {
        "check_decode_tps": _above(alone),
        "decode_tps_aggregate": _above(together),
        "check_ttft_ms": TTFT,
        **more,
    }

    def rung(one):
        return one.model_copy(update={"prediction": one.prediction.model_copy(update=update)})

    groups = (group.model_copy(update={"ladder": tuple(map(rung, group.ladder))}) for group in plan.groups)
    return plan.model_copy(update={"groups": tuple(groups)})


def _above(low):
    return Band(low=low, mid=1.2 * low, high=1.5 * low, basis="a test")


async def predict(client, name, alone, together, **more):
    """Apply the last generation with that prediction; the new generation."""
    last = (await client.history(name))[-1]
    plan = predicting(last.plan, alone, together, **more)
    # An equal specification would change nothing: `retry` makes another generation of it.
    request = ApplyRequest(spec=last.spec, plan=plan, who="a test", retry=True)
    return (await client.apply(request))[0]


async def main(name, alone, together):
    (root,) = Path.home().glob(".local/state/sparkfleet/*/address.json")
    client = await connect(FleetPaths(root.parent))
    assert client is not None, "no controller answers"
    async with client:
        print(await predict(client, name, float(alone), float(together)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

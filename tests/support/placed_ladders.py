"""Ladders by the memory and the nodes of their rungs, and their deployment in a controller's world."""

from control_values import deployment, plan

from sparkfleet.perf.prediction import Band


def ladder(*rungs, context=512):
    """A plan of one group; of each rung the memory that it needs, bytes, and its node or nodes."""
    made = plan()
    choice = made.groups[0].choice

    def rung(needs, node):
        band = Band(low=0.0, mid=needs, high=needs)
        nodes = (node,) if isinstance(node, str) else node
        shape = choice.candidate.shape.model_copy(update={"nodes": nodes})
        return choice.model_copy(
            update={
                "candidate": choice.candidate.model_copy(update={"shape": shape, "context": context}),
                "prediction": choice.prediction.model_copy(update={"memory_bytes_per_rank": band}),
            }
        )

    group = made.groups[0].model_copy(update={"ladder": tuple(rung(*one) for one in rungs)})
    return made.model_copy(update={"groups": (group,)})


async def put(world, made, **fields):
    await world.controller.commands.put(deployment(**fields), made, "me")
    await world.controller.reconcile()

"""One node whose memory holds few deployments on demand at once, for tests of the policy."""

from dataclasses import replace

from control_values import deployment, plan
from policy_world import PolicyWorld, seen

from sparkfleet.controlplane.policy.actions import UnloadDeployment
from sparkfleet.controlplane.policy.state import FleetState
from sparkfleet.controlplane.state.demand import RequestDemand
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.units import GIB

TOTAL = 100


def on_demand(name, gib=80, **fields):
    return wanted(name, gib, on_demand=True, **fields)


def wanted(name, gib, generation=1, **fields):
    """A deployment that is predicted to hold so many GiB."""
    made = plan(name, mid=gib * GIB)
    spec = deployment(name).model_copy(update=fields)
    return Desired(spec=spec, plan=made, generation=generation, who="me", since=0.0)


class DemandWorld(PolicyWorld):
    """One node, on which groups hold what they are predicted to hold at most, and requests that a test sets."""

    def __init__(self, *each, **more):
        super().__init__(
            FleetState(desired={one.name: one for one in each}, nodes=seen(this="first")), **more
        )
        self.generations = {(one.name, one.generation): one for one in each}
        """Every generation that was applied."""
        self.taken = 0
        """GiB that something else holds."""
        self.requests = {}
        """Requests in flight, by deployment."""
        self.ended = {}
        self.waiting_since = {}
        self.ready_since = {}

    def request(self, name, count=1):
        """Requests for a deployment that do not end by themselves; 0: they have ended."""
        self.requests[name] = count
        if not count:
            self.ended[name] = self.seconds
            self.waiting_since.pop(name, None)

    def round(self):
        served = {app.deployment for app in self.state.apps if app.status == "running"}
        demand = {}
        for name, one in self.state.desired.items():
            if one.spec.on_demand:
                count = self.requests.get(name, 0)
                if count and name not in served:
                    self.waiting_since.setdefault(name, self.seconds)
                else:
                    self.waiting_since.pop(name, None)
                used_at = self.seconds if count else self.ended.get(name, 0.0)
                ready_since = self.ready_since.setdefault(name, self.seconds) if name in served else None
                if name not in served:
                    self.ready_since.pop(name, None)
                demand[name] = RequestDemand(
                    count, self.waiting_since.get(name), used_at, self.seconds - used_at, ready_since
                )
        held = self.taken * GIB + sum(
            self.generations[app.group[:2]].plan.groups[0].choice.prediction.memory_bytes_per_rank.high
            for app in self.state.apps
            if app.deployment in self.state.desired and app.status != "failed"
        )
        self.state = replace(self.state, demand=demand, available={"this": max(0, TOTAL * GIB - int(held))})
        return super().round()

    def apply(self, *each):
        """Deployments that are desired from now on, beside the others."""
        self.generations |= {(one.name, one.generation): one for one in each}
        self.state = replace(self.state, desired={**self.state.desired, **{one.name: one for one in each}})

    def rounds(self, seconds):
        """All actions of so many seconds."""
        return [action for _ in range(int(seconds)) for action in self.round()]

    @property
    def running(self):
        return {app.deployment for app in self.state.apps if app.status == "running"}


def unloads(actions):
    """Deployments that are unloaded, each with the reason."""
    return [(one.deployment, one.reason) for one in actions if isinstance(one, UnloadDeployment)]

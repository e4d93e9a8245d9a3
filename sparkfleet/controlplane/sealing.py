"""Seals the environment variables of what is applied, before anything stores or shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparkfleet.planner.types.plan import DeploymentPlan, Rung
from sparkfleet.runtime.sealed_env import EnvSealer, is_sealed, is_setting
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.fields import FrozenDict


def sealed(spec: Deployment, plan: DeploymentPlan, sealer: EnvSealer) -> tuple[Deployment, DeploymentPlan]:
    """A deployment and its plan with sealed values. Raises ControlError if a value is sealed, but not by this fleet."""
    after = sealed_deployment(spec, sealer)
    return (spec, plan) if after == spec else (after, _sealed_plan(plan, spec, sealer))


def sealed_deployment(spec: Deployment, sealer: EnvSealer) -> Deployment:
    """The same with sealed values. Raises as `sealed` does."""

    def values(env: Mapping[str, str]) -> FrozenDict[str, str]:
        return FrozenDict({name: sealer.seal(name, value) for name, value in env.items()})

    variants = tuple(
        one if one.env is None else one.model_copy(update={"env": values(one.env)}) for one in spec.variants
    )
    return spec.model_copy(update={"env": values(spec.env), "variants": variants})


def has_open_values(spec: Deployment) -> bool:
    """True if a value of the deployment would be sealed."""
    return any(_is_open(name, value) for variant in spec.resolved() for name, value in variant.env.items())


def may_have_open_values(document: str) -> bool:
    """False if a deployment, as it is stored, has no value that would be sealed. Quicker than to read it as one."""
    try:
        spec = json.loads(document)
        parts = (spec, *(spec.get("variants") or ()))
        return any(
            _is_open(name, str(value)) for one in parts for name, value in (one.get("env") or {}).items()
        )
    except (ValueError, AttributeError, TypeError):
        return True  # another form: its reader decides


def _is_open(name: str, value: str) -> bool:
    return bool(value) and not is_sealed(value) and not is_setting(name)


def _sealed_plan(plan: DeploymentPlan, spec: Deployment, sealer: EnvSealer) -> DeploymentPlan:
    """The plan with the deployment's own variables sealed; those that the planner added have no secrets."""
    own = {name for variant in spec.resolved() for name in variant.env}

    def rung_of(rung: Rung) -> Rung:
        env = tuple((n, sealer.seal(n, value) if n in own else value) for n, value in rung.candidate.env)
        return rung.model_copy(update={"candidate": rung.candidate.model_copy(update={"env": env})})

    groups = [group.model_copy(update={"ladder": tuple(map(rung_of, group.ladder))}) for group in plan.groups]
    return plan.model_copy(update={"groups": tuple(groups)})

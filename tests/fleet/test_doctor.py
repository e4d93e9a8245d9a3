"""The weights that deployments need, for the checks."""

from sparkfleet.doctor.snapshot import Needed
from sparkfleet.fleet.doctor import weights_of
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.specs.deployment import Deployment


def test_a_pinned_revision_is_kept_apart_from_the_name():
    model = f"Qwen/Qwen3-8B@{'a' * 40}"
    known = known_checkpoint("Qwen/Qwen3-8B")
    spec = Deployment.model_validate({"name": "chat", "model": model})
    (found,) = weights_of(spec, {model: known})
    assert isinstance(found, Needed)
    assert (found.model, found.revision) == ("Qwen/Qwen3-8B", "a" * 40)

import pytest

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.knowledge.models.fewer_bits import SMALLER, checkpoints_with_fewer_bits
from sparkfleet.knowledge.models.known_models import known_checkpoint


def smaller(model: str) -> list[Checkpoint]:
    known = known_checkpoint(model)
    assert known is not None
    found = checkpoints_with_fewer_bits(known)
    assert all(one.bytes_on_disk <= SMALLER * known.bytes_on_disk for one in found)
    return list(found)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Qwen/Qwen3.6-27B", {"Qwen/Qwen3.6-27B-FP8", "nvidia/Qwen3.6-27B-NVFP4"}),
        ("Qwen/Qwen3.6-27B-FP8", {"nvidia/Qwen3.6-27B-NVFP4"}),
        ("nvidia/Qwen3.6-27B-NVFP4", set()),
        # The present name of a repository that was called -FP4.
        ("meta-llama/Llama-3.3-70B-Instruct", {"nvidia/Llama-3.3-70B-Instruct-NVFP4"}),
        # Another version of the post-training is another model.
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", set()),
        ("openai/gpt-oss-120b", set()),
    ],
)
def test_published_checkpoints_of_the_same_model(model: str, expected: set[str]) -> None:
    assert {one.id for one in smaller(model)} == expected


def test_one_of_each_format_its_own_maker_first_then_nvidia() -> None:
    found = smaller("Qwen/Qwen3.8-27B")  # six owners have published its NVFP4
    formats = [one.quantization.scheme.format for one in found if one.quantization]
    assert len(formats) == len(found) == len(set(formats))
    assert {"Qwen/Qwen3.8-27B-FP8", "nvidia/Qwen3.8-27B-NVFP4"} < {one.id for one in found}


def test_a_revision_and_a_directory_of_other_shapes() -> None:
    known = known_checkpoint("Qwen/Qwen3.6-27B")
    assert known is not None
    at = known.model_copy(update={"id": "Qwen/Qwen3.6-27B@0123456"})
    assert len(checkpoints_with_fewer_bits(at)) == 2
    mine = known.model_copy(update={"id": "/models/Qwen3.6-27B", "hidden_size": 1024})
    assert checkpoints_with_fewer_bits(mine) == ()

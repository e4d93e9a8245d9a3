import csv
import re

import pytest

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.errors import FactError
from sparkfleet.knowledge.data_file import packaged
from sparkfleet.knowledge.models.fewer_bits import SMALLER, checkpoints_with_fewer_bits, published_models
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.weight_formats import format_of

DEPLOYED = ("vllm", "sglang", "trt-llm", "trtllm")
"""Engines that a deployment can have, as rows spell them."""
NO_SOURCE = "no source states the bits of its parts"
CONTRADICTED = "its sources contradict each other, or the size of its parts"
FINE_TUNED = "a fine-tune of others' weights: another model than the one that it was made from"
TRELLIS = "EXL3: its bits are in its name, and what it keeps in 16 bits is in no source"
LEFT_OUT = {
    "0xSero/Hy3-299B-NVFP4": CONTRADICTED,
    "AEON-7/Ornith-1.0-35B-AEON-Ultimate-Uncensored-NVFP4": FINE_TUNED,
    "AEON-7/Qwen3.6-27B-AEON-Ultimate-Uncensored-Multimodal-NVFP4-MTP-XS": FINE_TUNED,
    "AEON-7/Qwen3.6-27B-AEON-Ultimate-Uncensored-NVFP4": FINE_TUNED,
    "AEON-7/Qwen3.6-35B-A3B-heretic-NVFP4": FINE_TUNED,
    "AEON-7/Qwen3.8-27B-Ultimate-Uncensored-NVFP4-Mixed": FINE_TUNED,
    "Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw": TRELLIS,
    "Qwen/Qwen3-14B-AWQ": NO_SOURCE,
    "Qwen/Qwen3-30B-A3B-GPTQ-Int4": NO_SOURCE,
    "Qwen/Qwen3-32B-AWQ": NO_SOURCE,
    "Qwen/Qwen3-4B-AWQ": NO_SOURCE,
    "Qwen/Qwen3-VL-30B-A3B-Instruct-FP8": NO_SOURCE,
    "Qwen/Qwen3-VL-8B-Instruct-FP8": NO_SOURCE,
    "Qwen/Qwen3.5-35B-A3B-FP8": NO_SOURCE,
    "RedHatAI/DeepSeek-Coder-V2-Lite-Instruct-FP8": NO_SOURCE,
    "RedHatAI/gemma-4-12B-it-NVFP4": NO_SOURCE,
    "RedHatAI/gemma-4-31B-it-FP8-Dynamic": NO_SOURCE,
    "TechxGenus/Codestral-22B-v0.1-FP8": NO_SOURCE,
    "XiaomiMiMo/MiMo-V2.6-Flash-RL": NO_SOURCE,
    "bot-lab-21/DeepSeek-V4.1-Flash-EXL3-3.5bpw-Pollard": TRELLIS,
    "brandonmusic/GLM-5.3-Flash-tr3-4bpw": TRELLIS,
    "coolbho3k/DeepSeek-V4.1-Flash-EXL3-3bpw": TRELLIS,
    "cpatonn/Qwen3-VL-32B-Instruct-AWQ-4bit": NO_SOURCE,
    "drowzeys/DeepSeek-V4-Flash-DSpark-Abliterated-Uncensored": FINE_TUNED,
    "drowzeys/keys-DeepSeekV4-Flash-GA-0731-Dspark-Abliterated-32-32": FINE_TUNED,
    "edp1096/Huihui-RadixArk-Qwen3.8-Flash-Next-abliterated-NVFP4": FINE_TUNED,
    "fraserprice/DeepSeek-V4-Flash-DSpark": NO_SOURCE,
    "leon-se/gemma-4-E4B-it-FP8-Dynamic": NO_SOURCE,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8": NO_SOURCE,
    "nvidia/NVIDIA-Nemotron-Labs-3-Elastic-30B-A3B-NVFP4": NO_SOURCE,
    "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-FP8": NO_SOURCE,
    "ornith-ai/Ornith-1.5-35B-A3B-NVFP4": NO_SOURCE,
    "prem-research/DeepSeek-V4-Flash-0731-abliterated": FINE_TUNED,
    "rdtand/Qwen3.6-35B-A3B-PrismaQuant-4.75bit-vllm": NO_SOURCE,
    "shieldstar/Qwen3.5-122B-A10B-int4-AutoRound-EC": NO_SOURCE,
    "txn545/Qwen3.5-122B-A10B-NVFP4": CONTRADICTED,
    "unsloth/Qwen3.6-35B-A3B-NVFP4": NO_SOURCE,
    "zai-org/GLM-5.3-Flash-FP8": NO_SOURCE,
}
"""Measured requantised checkpoints with known shapes that are not known by name, each with the reason."""


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
        ("Qwen/Qwen3-30B-A3B", {"Qwen/Qwen3-30B-A3B-FP8"}),
        ("Qwen/Qwen3-32B", {"Qwen/Qwen3-32B-FP8"}),
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


def test_every_measured_requantised_checkpoint_is_known_by_name_or_has_a_reason() -> None:
    rows = csv.DictReader(packaged("measurements/benchmarks.csv").splitlines())
    names = {row["model"] for row in rows if row["engine"] in DEPLOYED}
    known = {id_.lower() for ids in published_models().values() for id_ in ids}
    unknown = {name for name in names if _is_requantised(name) and name.lower() not in known}
    assert unknown == set(LEFT_OUT)


def _is_requantised(name: str) -> bool:
    """True for a Hub id of known shapes whose weights have fewer than 16 bits."""
    try:
        found = known_checkpoint(name) if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else None
    except FactError:
        return False
    return found is not None and found.quantization is not None


def test_a_name_with_two_formats_is_planned_with_that_of_its_experts() -> None:
    """By its name alone it was 126 GB in FP8; its files have 67 GiB."""
    found = known_checkpoint("bleysg/Qwen3.5-122B-A10B-int4-fp8-hybrid")
    assert found is not None
    assert found.bytes_on_disk == pytest.approx(67 * 2**30, rel=0.01)
    assert format_of(found).startswith("int4")


def test_a_requantisers_4bit_is_a_word_of_the_format() -> None:
    assert "cyankiwi/GLM-4.5-Air-AWQ-4bit" in [one.id for one in smaller("zai-org/GLM-4.5-Air")]

"""The model that `accuracy` and the fit see is the one that `plan` sees: every known config, through both."""

from __future__ import annotations

import re
from functools import cache
from itertools import product

import pytest

from sparkfleet.accuracy.accuracy import predict
from sparkfleet.accuracy.models import QUANTISATIONS, Stored, entry_of, find_shape
from sparkfleet.accuracy.rows import case_of
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.errors import FactError
from sparkfleet.knowledge.ceilings import physics
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.models.known_models import MODELS, known_checkpoint
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.engine_settings import EngineSettings
from sparkfleet.perf.latency.latency_model import model_of
from sparkfleet.perf.latency.rates import rates
from sparkfleet.perf.prediction import Speculation, Split
from sparkfleet.perf.predictor import Predictor
from sparkfleet.perf.workload import Workload

PROMPTS = (2048, 32_768)


def _names_of(entry: str) -> tuple[str, ...]:
    """Names that a plan knows by an entry of the collection of configs, or of models.yaml."""
    if entry in architectures():
        return entry, f"{entry}-NVFP4", f"{entry}-FP8"
    return (re.sub(r"\[(.).*?\]", r"\1", entry.replace("*/", "org/")).replace("*", ""),)


ENTRIES = (
    *(name for name in architectures() if not name.startswith("_")),
    *dict.fromkeys(known.match[0] for known in MODELS.content.models),
)


@cache
def _known(entry: str) -> tuple[Checkpoint, ...]:
    """Every checkpoint that a plan knows by the names of an entry."""
    return tuple(found for name in _names_of(entry) if (found := _by_name(name)) is not None)


def _by_name(id_: str) -> Checkpoint | None:
    try:
        return known_checkpoint(id_)
    except FactError:
        return None


INCOMPLETE = (
    "moonshotai/Kimi-K3",
    "Qwen/Qwen3-Coder-Next",
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B (mamba facts)",
    "XiaomiMiMo/MiMo-V2.5",
    "Qwen/Qwen3.5-35B-A3B (transformers default)",
)
"""Entries of the collection that are parts of a config."""
COMPLETE = tuple(name for name in architectures() if not name.startswith("_") and name not in INCOMPLETE)


def _planned(predictor: Predictor, tp: int, prompt: int) -> dict[str, object]:
    """Prediction of a plan for one request on `tp` nodes with vLLM."""
    settings = EngineSettings(
        engine="vllm",
        release="0.32",
        speculation=Speculation(),
        eager=False,
        kv_dtype="bf16",
        batch_tokens=2048,
        link=physics().links["qsfp200"] if tp > 1 else None,
    )
    setup = predictor._speed_config(
        Split(tp=tp), settings
    )  # what `rates` predicts for, at a workload of its own
    found = rates(model_of(setup, factors()), Workload(prompt=prompt, generate=256))
    return {
        "decode_tps_per_request": found.decode_tps_per_request,
        "decode_tps_aggregate": found.decode_tps_aggregate,
        "ttft_ms": found.ttft_ms,
    }


def _measured(checkpoint: Checkpoint, predictor: Predictor, tp: int, prompt: int) -> dict[str, object]:
    """Prediction of `accuracy` for a row that names the same model, format and size."""
    published = next((one for one in MODELS.content.models if one.names(checkpoint.id)), None)
    row = {
        "model": checkpoint.id,
        "quant": predictor.format,
        "weights_gb": str(published.gb) if published and published.gb else "",
        "engine": "vllm",
        "engine_version_or_image": "v0.32.0",
        "nodes": str(tp),
        "tp": str(tp),
        "link": "qsfp200",
        "spec_method": "none",
        "prompt_tokens": str(prompt),
        "gen_tokens": "256",
        "concurrency": "1",
        "kv_dtype": "bf16",
        "mem_util_flag": "0.9",
    }
    case = case_of(row, architectures())
    found = predict(
        case.model_copy(update={"setup": case.setup.model_copy(update={"max_running": None})}), factors()
    )
    return {metric: found[metric] for metric in ("decode_tps_per_request", "decode_tps_aggregate", "ttft_ms")}


def test_most_of_the_collection_is_known() -> None:
    assert len({checkpoint.id for entry in ENTRIES for checkpoint in _known(entry)}) > 240


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry not in INCOMPLETE])
def test_accuracy_and_plans_predict_the_same(entry: str) -> None:
    assert _known(entry)
    for checkpoint in _known(entry):
        predictor = Predictor(checkpoint)
        for tp, prompt in product((1, 2), PROMPTS):
            found = _measured(checkpoint, predictor, tp, prompt)
            assert found == _planned(predictor, tp, prompt), (checkpoint.id, tp, prompt)


def _from_config(name: str, format_name: str) -> Checkpoint:
    config = architectures().get(entry_of(name, architectures())) or {}
    return checkpoint_from_config(config, id=name, quantization=QUANTISATIONS[format_name])


@pytest.mark.parametrize("name", COMPLETE)
def test_a_config_has_one_shape(name: str) -> None:
    """Of any quantisation that a checkpoint can have: what `checkpoint_from_config` makes of it."""
    # Heads and towers are known of published checkpoints, and not by a config.
    beside = ("mtp", "vision")
    for format_name in QUANTISATIONS:
        planned = Predictor(_from_config(name, format_name)).shape
        found = find_shape(name, architectures(), Stored(format_name))
        for shape in (
            lambda shape: (shape.layers, shape.hidden, shape.experts, shape.top_k),
            lambda shape: [
                (part.kind, part.params, part.active) for part in shape.parts if part.kind not in beside
            ],
        ):
            assert shape(found) == shape(planned), format_name


@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_config_of_parts_makes_no_checkpoint(name: str) -> None:
    with pytest.raises(FactError):
        _from_config(name, "bf16")


def test_a_format_that_no_engine_of_ours_has_changes_bits_and_no_shapes() -> None:
    plain = find_shape("Qwen3.6-35B-A3B", architectures(), Stored("bf16"))
    packed = find_shape("Qwen3.6-35B-A3B", architectures(), Stored("q4_k"))
    assert packed.layers == plain.layers
    assert [part.params for part in packed.parts] == [
        part.params for part in plain.parts if part.kind != "vision"
    ]
    assert packed.bytes < 0.4 * plain.bytes

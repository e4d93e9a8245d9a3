"""Heads on the checkpoint of `small`, as engines read them. Whether drafts are accepted is in docs/builtin.md."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from sparkfleet.tiny_models import drafting
from sparkfleet.tiny_models.criterion import Criterion
from sparkfleet.tiny_models.recipes import Budget, Head
from sparkfleet.tiny_models.training import Row

BUDGET = Budget(steps=3, rows=2, row_tokens=384, warmup_steps=1, threads=1)


def head(method: str) -> Head:
    return Head.model_validate(
        {
            "name": f"small-{method}",
            "about": "a test",
            "of": "small",
            "method": method,
            "budget": BUDGET,
            "criterion": Criterion(),
        }
    )


@pytest.fixture(scope="module")
def wide(small):
    return small.model_copy(update={"budget": BUDGET})


@pytest.fixture(scope="module")
def built(checkpoint, wide, tmp_path_factory):
    """Every kind of head on the checkpoint of `small`, by method, and the progress of its build."""
    found, said = {}, []
    for method in drafting.heads.NEW:
        directory = tmp_path_factory.mktemp(method)
        drafting.build(head(method), wide, checkpoint, directory, said.append)
        found[method] = directory
    return found, said


def tensors(directory):
    return load_file(directory / "model.safetensors")


@pytest.mark.parametrize(
    ("method", "architecture", "layers"),
    [("eagle3", "LlamaForCausalLMEagle3", 1), ("dflash", "DFlashDraftModel", 2)],
)
def test_a_draft_declares_its_method(built, small, method, architecture, layers):
    config = json.loads((built[0][method] / "config.json").read_text())
    assert config["architectures"] == [architecture]
    assert config["num_hidden_layers"] == layers
    assert config["vocab_size"] == small.vocabulary
    assert config["head_dim"] == small.config["head_dim"]
    assert AutoConfig.from_pretrained(built[0][method]).hidden_size == small.config["hidden_size"]


def test_eagle3_reads_three_streams_and_brings_its_output(built, checkpoint, small):
    found, hidden = tensors(built[0]["eagle3"]), small.config["hidden_size"]
    assert found["fc.weight"].shape == (hidden, 3 * hidden)
    assert found["midlayer.self_attn.q_proj.weight"].shape[1] == 2 * hidden
    assert torch.equal(found["lm_head.weight"], tensors(checkpoint)["model.embed_tokens.weight"])


def test_dflash_leaves_the_vocabulary_to_its_model(built, small):
    found, hidden = tensors(built[0]["dflash"]), small.config["hidden_size"]
    assert found["fc.weight"].shape == (hidden, 2 * hidden)
    assert not {"embed_tokens.weight", "lm_head.weight"} & found.keys()


def test_mtp_is_its_model_with_one_more_layer(built, checkpoint):
    found, before = tensors(built[0]["mtp"]), tensors(checkpoint)
    assert all(torch.equal(found[name], tensor) for name, tensor in before.items())
    added = found.keys() - before.keys() - {"lm_head.weight"}
    assert added
    assert all(name.startswith("model.mtp_layers.0.") for name in added)
    config = json.loads((built[0]["mtp"] / "config.json").read_text())
    assert config["architectures"] == ["MiMoForCausalLM"]
    assert config["num_nextn_predict_layers"] == 1
    assert {file.name for file in built[0]["mtp"].iterdir()} == {file.name for file in checkpoint.iterdir()}


def test_no_file_has_a_path_of_this_machine(built, checkpoint):
    for directory in built[0].values():
        assert str(checkpoint) not in (directory / "config.json").read_text()


def test_all_of_it_is_half_precision(built):
    for directory in built[0].values():
        assert {tensor.dtype for tensor in tensors(directory).values()} == {torch.bfloat16}


def test_the_same_head_gives_the_same_bytes(built, checkpoint, wide, tmp_path):
    torch.manual_seed(99)  # whatever the process did before
    drafting.build(head("dflash"), wide, checkpoint, tmp_path, lambda _: None)
    for file in built[0]["dflash"].iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_every_step_is_reported(built):
    steps = [progress.step for progress in built[1] if progress.phase == "training"]
    assert steps == list(range(1, BUDGET.steps + 1)) * len(built[0])


def test_a_lesson_is_what_transformers_computes(checkpoint):
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="sdpa")
    row = Row([1, 7, 9, 4], [0.1, 1.0, 6.0, 1.0], [0, 1, 2, 3])
    found = drafting.lesson(model, [row])
    with torch.no_grad():
        wanted = model(torch.tensor([row.ids]), output_hidden_states=True)
    torch.testing.assert_close(found.logits, wanted.logits)
    for stream, hidden in zip(found.streams, wanted.hidden_states[:-1], strict=False):
        torch.testing.assert_close(stream, hidden)
    torch.testing.assert_close(model.model.norm(found.streams[-1]), wanted.hidden_states[-1])
    assert found.sampled.tolist() == [[False, True, True, True]]
    assert not any(hooks for module in model.modules() for hooks in [module._forward_pre_hooks])

from __future__ import annotations

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparkfleet.tiny_models import damage
from sparkfleet.tiny_models.recipes import CORRUPT

WEIGHTS = "model.safetensors"


def test_only_one_tensor_is_damaged(checkpoint, tmp_path):
    damage.build(CORRUPT, checkpoint, tmp_path, lambda _: None)
    before, after = (load_file(where / WEIGHTS) for where in (checkpoint, tmp_path))
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == [CORRUPT.tensor]
    whole, broken = before[CORRUPT.tensor], after[CORRUPT.tensor]
    assert torch.equal(broken[CORRUPT.rows], whole[0])
    assert sorted(whole.sum(dim=1).tolist()) == sorted(broken.sum(dim=1).tolist()), "the same rows, elsewhere"


def test_everything_else_is_copied(checkpoint, tmp_path):
    damage.build(CORRUPT, checkpoint, tmp_path, lambda _: None)
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in checkpoint.iterdir()}
    for file in checkpoint.iterdir():
        if file.name != WEIGHTS:
            assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_it_loads_and_answers(checkpoint, tmp_path):
    damage.build(CORRUPT, checkpoint, tmp_path, lambda _: None)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = AutoTokenizer.from_pretrained(tmp_path)("Hello", return_tensors="pt")["input_ids"]
    assert (
        model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False).shape[1] == ids.shape[1] + 4
    )

from __future__ import annotations

import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.blip_2 import Blip2Processor

from sparkfleet.tiny_models import vision
from sparkfleet.tiny_models.recipes import VISION


@pytest.fixture(scope="module")
def built(checkpoint, tmp_path_factory):
    directory = tmp_path_factory.mktemp("vision")
    vision.build(VISION, checkpoint, directory, lambda _: None)
    return directory


@pytest.fixture(scope="module")
def model(built):
    return AutoModelForImageTextToText.from_pretrained(built, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def processor(built):
    """Without torchvision: engines on CPUs have none."""
    return Blip2Processor(
        BlipImageProcessorPil.from_pretrained(built),
        AutoTokenizer.from_pretrained(built),
        num_query_tokens=vision.IMAGE_TOKENS,
    )


def test_text_is_read_as_before(model, checkpoint, small):
    before = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ids = torch.tensor([[1, 40, 50, 60, 2]])
    with torch.no_grad():
        after = model.language_model(ids).logits[..., : small.vocabulary]
        torch.testing.assert_close(after, before(ids).logits)


def test_an_image_takes_the_place_of_its_tokens(model, processor):
    picture = Image.new("RGB", (80, 60), (255, 0, 0))
    given = processor(images=[picture], text="Hello", return_tensors="pt")
    assert (given["input_ids"] == model.config.image_token_id).sum() == vision.IMAGE_TOKENS
    with torch.no_grad():
        red = model(**given).logits
        given["pixel_values"] = -given["pixel_values"]
        other = model(**given).logits
    assert torch.isfinite(red).all()
    assert not torch.equal(red, other), "it does look"


def test_added_tokens_fit_in_the_vocabulary(model, processor, small):
    assert model.config.text_config.vocab_size % 64 == 0
    assert processor.tokenizer.convert_tokens_to_ids(vision.IMAGE) == small.vocabulary
    assert len(processor.tokenizer) <= model.config.text_config.vocab_size


def test_the_same_bytes_twice_and_no_path_of_this_machine(built, checkpoint, tmp_path):
    torch.manual_seed(5)  # whatever the process did before
    vision.build(VISION, checkpoint, tmp_path, lambda _: None)
    for file in built.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
        assert file.suffix != ".json" or str(checkpoint) not in file.read_text("utf-8")

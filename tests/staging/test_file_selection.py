from __future__ import annotations

import pytest

from sparkfleet.staging.file_selection import wanted

SMALL = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "merges.txt",
    "modeling.py",
]


@pytest.mark.parametrize(
    ("weights", "kept"),
    [
        (
            ["model.safetensors", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"],
            ["model.safetensors"],
        ),
        (["pytorch_model.bin", "tf_model.h5"], ["pytorch_model.bin"]),
        (["a-Q4.gguf"], ["a-Q4.gguf"]),
        (["model-1.safetensors", "consolidated.safetensors"], ["model-1.safetensors"]),
        (["consolidated.safetensors"], ["consolidated.safetensors"]),
        (["model-1.safetensors", "original/consolidated.00.pth"], ["model-1.safetensors"]),
        (["model-1.safetensors", "original/model-1.safetensors", "metal/model.bin"], ["model-1.safetensors"]),
        (["model.safetensors", "onnx/model.onnx", "onnx/model.onnx_data"], ["model.safetensors"]),
        (["MODEL.SAFETENSORS", "x.bin"], ["MODEL.SAFETENSORS"]),
        (["mtp/model.safetensors", "model.safetensors"], ["mtp/model.safetensors", "model.safetensors"]),
        ([], []),
    ],
)
def test_one_copy_of_the_weights(weights, kept):
    assert wanted([*SMALL, *weights]) == (*SMALL, *kept)


def test_nothing_for_people_and_nothing_hidden():
    assert wanted(["figures/a.png", "demo.mp4", ".gitattributes", ".cache/x.json", "config.json"]) == (
        "config.json",
    )

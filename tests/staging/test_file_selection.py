from __future__ import annotations

import pytest

from sparkfleet.errors import FactError
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


GGUF = ["a-Q4_K_M.gguf", "Q8_0/a-Q8_0-00001-of-00002.gguf", "Q8_0/a-Q8_0-00002-of-00002.gguf"]
TOWERS = ["mmproj-BF16.gguf", "mmproj-F16.gguf"]


@pytest.mark.parametrize(
    ("tag", "kept"),
    [("q4_k_m", ["a-Q4_K_M.gguf", "mmproj-F16.gguf"]), ("Q8_0", [*GGUF[1:], "mmproj-F16.gguf"])],
)
def test_one_gguf_model_by_its_tag_without_files_of_other_formats(tag, kept):
    listed = [*SMALL, "README.md", *GGUF, *TOWERS, "imatrix.gguf", "model.safetensors"]
    assert set(wanted(listed, tag)) == {*kept, "README.md"}


def test_a_tag_that_is_not_there_or_missing_is_refused_with_the_tags():
    with pytest.raises(FactError, match="no GGUF model with the tag Q2_K"):
        wanted(GGUF, "Q2_K", "org/a")
    with pytest.raises(FactError, match=r"has 2 GGUF models: Q8_0, Q4_K_M \(1 GB\)\."):
        wanted([*SMALL, *GGUF], where="org/a", sizes={GGUF[0]: 10**9})
    assert wanted([*SMALL, GGUF[0], *TOWERS]) == (GGUF[0], "mmproj-F16.gguf")
    assert wanted([*GGUF, "model.safetensors", "config.json"]) == ("model.safetensors", "config.json")


def test_nothing_for_people_and_nothing_hidden():
    assert wanted(["figures/a.png", "demo.mp4", ".gitattributes", ".cache/x.json", "config.json"]) == (
        "config.json",
    )

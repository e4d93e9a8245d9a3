"""Copies of other tools, as a scan of a node reports them."""

from __future__ import annotations

import pytest

from sparkfleet.staging.agent.protocol import LineReporter
from sparkfleet.staging.agent.scan import LookRequest, work
from sparkfleet.staging.manifest import StagingItem

COMMIT = "1" * 40


@pytest.mark.parametrize(
    ("names", "without"),
    [
        (("config.json", "model.safetensors"), True),
        (("config.json", "model.safetensors", "tokenizer.json"), False),
        (("config.json", "model.safetensors", "qwen.tiktoken"), False),
        (("config.json", "consolidated.safetensors", "tekken.json"), False),
        (("config.json", "model.safetensors", "spiece.model"), False),
        (("config.json", "model.safetensors", "vocab.txt"), False),
        (("config.json", "model.gguf"), False),
    ],
)
def test_a_copy_of_another_tool_without_a_tokenizer_is_reported(names, without, tmp_path):
    folder = tmp_path / "models--o--n"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for directory in (folder / "blobs", folder / "refs"):
        directory.mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    for number, name in enumerate(names):
        digest = str(number) * 64
        (folder / "blobs" / digest).write_bytes(b"x" * (number + 1))
        (snapshot / name).symlink_to(f"../../blobs/{digest}")
    request = LookRequest(wanted=(StagingItem.model("o/n"),), cache=str(tmp_path))
    (found,) = work(request, LineReporter()).wanted
    assert (found.complete, found.no_tokenizer) == (True, without)

"""Facts of GGUF checkpoints: against what llama.cpp itself reports, and against files that cannot be planned."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pytest
from tiny_gguf import (
    BF16,
    F16,
    F32,
    MXFP4,
    Q4_K,
    Q8_0,
    gguf,
    llama_gguf,
    llama_keys,
    llama_shards,
    llama_tensors,
    tower_gguf,
)

from sparkfleet.checkpoints.arch.draft_layers import draft_method
from sparkfleet.checkpoints.arch.layers import LayerKind
from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.checkpoint_reader import read_checkpoint
from sparkfleet.errors import FactError
from sparkfleet.perf.model_shape import from_checkpoint

MEASURED = json.loads((Path(__file__).parent / "gguf" / "data" / "llama_cpp_memory.json").read_text())
UNITS = {"K": 1e3, "M": 1e6}
MIB = 1 << 20
ROUNDED = 0.006
"""llama.cpp prints two digits."""


def written(directory: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def measured(name: str, directory: Path) -> Checkpoint:
    """A model of llama.cpp's, its weights a hole."""
    one = MEASURED[name]
    path = directory / f"{name}.gguf"
    path.write_bytes(zlib.decompress(base64.b64decode(one["header"])))
    with path.open("r+b") as file:
        file.truncate(one["file_bytes"])
    return read_checkpoint(path)


@pytest.mark.parametrize("name", MEASURED)
def test_sizes_are_those_that_llama_cpp_reports(name, tmp_path):
    found, one = measured(name, tmp_path), MEASURED[name]
    count, unit = one["parameters"].split()
    assert sum(found.parameters_by_part().values()) / UNITS[unit] == pytest.approx(float(count), abs=ROUNDED)
    assert sum(found.bytes_by_part().values()) / MIB == pytest.approx(one["mib"], abs=ROUNDED)
    assert 2 * found.state_bytes_per_sequence() / MIB == pytest.approx(one["state_mib"], abs=ROUNDED)
    caches = {cells for _, cells in one["kv"]}
    expected = sum(size for size, _ in one["kv"])
    by_cells = _kv_mib(found, max(caches, default=0), min(caches, default=0))
    assert by_cells == pytest.approx(expected, abs=ROUNDED * max(1, len(one["kv"])))


def _kv_mib(found: Checkpoint, cells: int, window_cells: int) -> float:
    """The KV caches with these cells, of layers that attend to all tokens and of those that slide."""
    sliding = found.kv_bytes_per_token(kind=LayerKind.SLIDING)
    return ((found.kv_bytes_per_token() - sliding) * cells + sliding * window_cells) / MIB


def test_a_llama(tmp_path):
    found = read_checkpoint(written(tmp_path, {"a-Q4_K_M.gguf": llama_gguf()}))
    assert found.id == str(tmp_path)
    assert found.gguf is not None
    assert (found.gguf.model, found.gguf.mmproj, found.gguf.tag) == ("a-Q4_K_M.gguf", "", "Q4_K_M")
    assert (found.model_type, found.hidden_size, found.vocab_size) == ("llama", 256, 600)
    assert (found.max_positions, found.dense_layers, found.moe_layers) == (8192, 2, 0)
    assert found.kv_bytes_per_token() == 2 * 2 * 2 * 32 * 2  # layers, key and value, heads, size, 16 bits
    assert (found.license.id, found.license.kind) == ("apache-2.0", "open-source")
    assert (found.sampling.temperature, found.sampling.top_k, found.sampling.top_p) == (0.75, 20, None)
    assert found.chat_template is True
    assert found.tie_word_embeddings is False
    assert found.bytes_on_disk == len(llama_gguf())
    assert found.loaded_bytes == sum(found.bytes_by_part().values())  # 32 bits stay 32 bits


def test_parts_and_quantization(tmp_path):
    found = read_checkpoint(written(tmp_path, {"a-Q4_K_M.gguf": llama_gguf()}))
    assert set(found.bytes_by_part()) == {Part.EMBEDDING, Part.HEAD, Part.NORMS, Part.ATTENTION, Part.MLP}
    assert found.parameters_by_part()[Part.ATTENTION] == 2 * (2 * 256 * 256 + 2 * 256 * 64)
    quantization = found.quantization
    assert quantization is not None
    assert (quantization.method, quantization.scheme.format) == ("gguf", "gguf4")
    assert quantization.scheme.stored_bits == 4.5
    assert quantization.scheme_of(Part.HEAD).format == "gguf6"
    assert quantization.scheme_of(Part.HEAD).stored_bits == pytest.approx(6.5625, abs=0.001)
    shares = {(one.part, one.scheme.format): one.share for one in quantization.covers if one.scheme}
    assert shares[Part.MLP, "gguf4"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("kind", "dtype"), [(BF16, "bfloat16"), (F16, "float16")])
def test_weights_of_16_bits_are_not_quantised(kind, dtype, tmp_path):
    tensors = [(name, kind if of != F32 else F32, shape) for name, of, shape in llama_tensors()]
    found = read_checkpoint(written(tmp_path, {"a-X.gguf": gguf(llama_keys(), tensors)}))
    assert found.quantization is None
    assert found.dtype == dtype


def test_without_a_head_the_embedding_is_tied(tmp_path):
    tensors = [one for one in llama_tensors() if one[0] != "output.weight"]
    found = read_checkpoint(written(tmp_path, {"a-Q4_K_M.gguf": gguf(llama_keys(), tensors)}))
    assert found.tie_word_embeddings
    assert found.active_share(Part.EMBEDDING) == 1.0


def test_a_mixture_with_shared_experts_and_mtp(tmp_path):
    keys = llama_keys(
        general__architecture="glm4moe",
        **{
            f"glm4moe__{key.removeprefix('llama.').replace('.', '__')}": given
            for key, given in llama_keys().items()
            if key.startswith("llama.")
        },
        glm4moe__expert_count=8,
        glm4moe__expert_used_count=2,
        glm4moe__nextn_predict_layers=1,
    )
    keys["glm4moe.block_count"] = 3
    tensors = llama_tensors()
    tensors = [one for one in tensors if not one[0].startswith("blk.1.ffn_") or "norm" in one[0]]
    tensors += [
        ("blk.1.ffn_gate_inp.weight", F32, (256, 8)),
        ("blk.1.exp_probs_b.bias", F32, (8,)),
        ("blk.1.ffn_gate_exps.weight", MXFP4, (256, 128, 8)),
        ("blk.1.ffn_up_exps.weight", MXFP4, (256, 128, 8)),
        ("blk.1.ffn_down_exps.weight", MXFP4, (128, 256, 8)),
        ("blk.1.ffn_up_shexp.weight", Q8_0, (256, 128)),
        ("blk.2.nextn.eh_proj.weight", Q8_0, (512, 256)),
        ("blk.2.attn_q.weight", Q4_K, (256, 256)),
    ]
    found = read_checkpoint(written(tmp_path, {"a-MXFP4.gguf": gguf(keys, tensors)}))
    assert (found.experts, found.experts_per_token, found.shared_experts) == (8, 2, 1)
    assert (found.moe_layers, found.dense_layers) == (1, 1)
    assert (found.mtp_layers, found.declared_mtp_layers) == (1, 1)
    assert found.parameters_by_part()[Part.EXPERTS] == 3 * 256 * 128 * 8
    assert found.parameters_by_part()[Part.MTP] == 512 * 256 + 256 * 256
    assert found.parameters_by_part()[Part.ROUTER] == 256 * 8 + 8
    assert found.layer_counts() == {LayerKind.FULL: 2}
    assert found.quantization is not None
    assert found.quantization.scheme_of(Part.EXPERTS).format == "gguf-mxfp4"
    assert found.quantization.scheme_of(Part.EXPERTS).stored_bits == 4.25


def test_the_tower_beside_a_model(tmp_path):
    files = {
        "a-Q4_K_M.gguf": llama_gguf(),
        "mmproj-BF16.gguf": tower_gguf(BF16),
        "mmproj-F16.gguf": tower_gguf(),
    }
    found = read_checkpoint(written(tmp_path, files))
    assert found.gguf is not None
    assert found.gguf.mmproj == "mmproj-F16.gguf"
    assert found.vision is True
    assert found.parameters_by_part()[Part.VISION] == 64 * 64 + 64 * 256
    assert found.bytes_on_disk == len(llama_gguf()) + len(tower_gguf())


def test_one_of_several_by_its_tag_or_its_file(tmp_path):
    directory = written(
        tmp_path,
        {
            "a-Q4_K_M.gguf": llama_gguf(),
            "UD-Q8_0/a-UD-Q8_0-00001-of-00002.gguf": llama_shards(kind=Q8_0)[0],
            "UD-Q8_0/a-UD-Q8_0-00002-of-00002.gguf": llama_shards(kind=Q8_0)[1],
            "a.imatrix.gguf": b"no model",
            "mtp-a-Q8_0.gguf": b"no model",
        },
    )
    found = read_checkpoint(directory, id="org/a:ud-q8_0")
    assert found.id == "org/a:UD-Q8_0"
    assert found.gguf is not None
    assert found.gguf.model == "UD-Q8_0/a-UD-Q8_0-00001-of-00002.gguf"
    shard = directory / "UD-Q8_0" / "a-UD-Q8_0-00001-of-00002.gguf"
    by_file = read_checkpoint(shard)
    assert (by_file.id, by_file.path) == (str(shard), shard.parent)
    assert by_file.weights == found.weights
    with pytest.raises(FactError, match=r"has 2 GGUF models: Q4_K_M .*, UD-Q8_0") as several:
        read_checkpoint(directory)
    assert "a-Q4_K_M.gguf" in several.value.do
    with pytest.raises(FactError, match="no GGUF model with the tag Q3_K_M") as absent:
        read_checkpoint(directory, id="org/a:Q3_K_M")
    assert "UD-Q8_0" in absent.value.means
    shard.with_name("a-UD-Q8_0-00002-of-00002.gguf").unlink()
    with pytest.raises(FactError, match="1 of the 2 files of UD-Q8_0 are missing"):
        read_checkpoint(directory, id="org/a:UD-Q8_0")


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("bert", "does not write text"),
        ("deepseek4", "is not known"),
        ("", "general.architecture"),
        ("x" * 100, "general.architecture"),
    ],
)
def test_an_architecture_that_cannot_be_planned(architecture, words, tmp_path):
    keys = llama_keys(general__architecture=architecture)
    with pytest.raises(FactError, match=words):
        read_checkpoint(written(tmp_path, {"a-Q4_K_M.gguf": gguf(keys, llama_tensors())}))


WINDOWS = {"attention__sliding_window": 2048, "attention__sliding_window_pattern": [True, False]}


def draft_gguf(architecture, extra=(), **changes):
    """A file that only drafts: two layers of a Llama, with the keys and tensors of its kind."""
    keys = llama_keys(
        general__architecture=architecture, **{f"{architecture}__{key}": one for key, one in changes.items()}
    )
    return gguf(
        {key.replace("llama.", f"{architecture}."): one for key, one in keys.items()},
        [*llama_tensors(), *extra],
    )


@pytest.mark.parametrize(
    ("architecture", "tensor", "changes", "method", "block"),
    [
        ("eagle3", "fc.weight", {}, "eagle3", None),
        ("dflash", "fc.weight", {"block_size": 16}, "dflash", 16),
        ("dflash", "selector_hidden.weight", {"block_size": 8, "selector_top_k": 4}, "dflash2", 8),
        ("dflash", "markov_w1.weight", {"block_size": 7}, "dspark", 7),
        ("gemma4-assistant", "nextn.pre_projection.weight", WINDOWS, "mtp", None),
    ],
)
def test_a_draft_is_read_as_what_it_is(architecture, tensor, changes, method, block, tmp_path):
    file = draft_gguf(architecture, [(tensor, F32, (256, 256))], **changes)
    found = read_checkpoint(written(tmp_path, {"dflash-a-Q4_K_M.gguf": file}))
    assert draft_method(found.architectures) == method
    assert (found.draft_block, found.gguf.model) == (block, "dflash-a-Q4_K_M.gguf")
    assert (len(found.layers), found.hidden_size) == (1 if changes is not WINDOWS else 2, 256)


def test_a_draft_may_have_no_vocabulary_of_its_own(tmp_path):
    tensors = [one for one in llama_tensors() if not one[0].startswith(("token_embd", "output."))]
    keys = llama_keys(general__architecture="dflash")
    file = gguf({key.replace("llama.", "dflash."): one for key, one in keys.items()}, tensors)
    shape = from_checkpoint(read_checkpoint(written(tmp_path, {"a-Q4_K_M.gguf": file})))
    assert (shape.part("embedding"), shape.part("head"), shape.vocab) == (None, None, 600)


def test_the_windows_of_a_draft_are_listed_in_its_file(tmp_path):
    found = read_checkpoint(written(tmp_path, {"a-Q4_K_M.gguf": draft_gguf("dflash", **WINDOWS)}))
    assert [layer.window for layer in found.layers] == [2048, None]


def test_a_new_architecture_of_plain_attention_is_planned_with_its_keys(tmp_path):
    keys = {
        key.replace("llama.", "novel."): one for key, one in llama_keys(general__architecture="novel").items()
    }
    found = read_checkpoint(written(tmp_path, {"a-Q4_K_M.gguf": gguf(keys, llama_tensors())}))
    assert (found.model_type, found.kv_bytes_per_token()) == ("novel", 512)
    stateful = [*llama_tensors(), ("blk.0.ssm_a", F32, (8,))]
    with pytest.raises(FactError, match=r"blk\.0\.ssm_a.*novel is not known"):
        read_checkpoint(written(tmp_path, {"a-Q4_K_M.gguf": gguf(keys, stateful)}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama__block_count": 3}, "no weights for 1 of 3 layers"),
        ({"llama__block_count": 100_000}, "between 1 and 512"),
        ({"llama__embedding_length": "wide"}, "a whole number"),
        ({"llama__attention__head_count_kv": [2]}, "1 entries for 2 layers"),
    ],
)
def test_keys_that_cannot_be_right(changes, words, tmp_path):
    with pytest.raises(FactError, match=words):
        read_checkpoint(written(tmp_path, {"a-Q4_K_M.gguf": llama_gguf(**changes)}))

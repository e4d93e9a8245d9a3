import json

import pytest
from tiny_gguf import llama_gguf, tower_gguf


def test_a_known_name(sparkfleet):
    code, out, err = sparkfleet("inspect", "Qwen/Qwen3.6-27B-FP8")
    assert (code, err) == (0, "")
    assert "config alone, weights estimated" in out
    assert "16 full, 48 linear" in out
    assert "64.0 KiB per token (bf16)" in out
    assert "apache-2.0 (open-source)" in out


def test_experts_and_license(sparkfleet):
    out = sparkfleet("inspect", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4")[1]
    assert "512, 22 per token" in out
    assert "nvidia-open-model-license (other)" in out


def test_a_license_that_nobody_knows(sparkfleet):
    out = sparkfleet("inspect", "gpt-oss-120b", "--offline")[1]
    assert "  license   unknown\n" in out


def test_a_directory(sparkfleet, tmp_path):
    config = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
        "vocab_size": 256, "max_position_embeddings": 512, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, _ = sparkfleet("inspect", tmp_path)
    assert code == 0
    assert "2 full" in out
    assert "  size      0.09 million parameters" in out  # not "0.00 billion"


@pytest.mark.parametrize("name", ["model", "./model"])
def test_a_directory_that_is_not_named_from_the_root(sparkfleet, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    code, _, err = sparkfleet("inspect", name)
    assert code == 1
    assert err.splitlines()[-1] == f"`sparkfleet inspect {tmp_path.resolve() / 'model'}`."


def test_json(sparkfleet):
    body = json.loads(sparkfleet("inspect", "openai/gpt-oss-120b", "--json")[1])
    assert body["version"] == 1
    assert body["checkpoint"]["experts"] == 128


@pytest.mark.parametrize("model", ["nobody/knows", "/does/not/exist", "not an id"])
def test_what_is_not_there(sparkfleet, model):
    code, out, err = sparkfleet("inspect", model)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")


def test_a_near_name_is_suggested(sparkfleet):
    err = sparkfleet("inspect", "openai/gpt-os-120b-x")[2]
    assert "openai/gpt-oss-120b" in err


def test_a_builtin_model_that_was_never_served(sparkfleet, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, _, err = sparkfleet("inspect", "builtin:tiny")
    assert code == 1
    assert "on its first start" in err


@pytest.mark.parametrize(
    ("name", "kind"), [("weights", "a directory without config.json"), ("x.yaml", "a file")]
)
def test_a_path_that_is_no_checkpoint(sparkfleet, tmp_path, monkeypatch, name, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "x.yaml").write_text("name: x")
    code, _, err = sparkfleet("inspect", name, "--offline")
    assert code == 1
    assert f'"{name}" here is {kind}.' in err
    assert "hf download" not in err


def test_a_gguf_file(sparkfleet, tmp_path, monkeypatch):
    file = tmp_path / "a-Q4_K_M.gguf"
    file.write_bytes(llama_gguf())
    (tmp_path / "mmproj-F16.gguf").write_bytes(tower_gguf())
    code, out, _ = sparkfleet("inspect", file)
    assert code == 0
    assert "  GGUF      Q4_K_M · a-Q4_K_M.gguf\n" in out
    assert "  mmproj    mmproj-F16.gguf\n" in out
    assert "  template  yes\n" in out
    assert "0.5 KiB per token (f16)" in out
    assert "gguf4 (gguf, mixed), 4.50 bits per weight" in out
    monkeypatch.chdir(tmp_path)
    code, _, err = sparkfleet("inspect", "a-Q4_K_M.gguf")
    assert code == 1
    assert f"`sparkfleet inspect {file}`" in err

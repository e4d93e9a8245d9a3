import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet import knowledge
from sparkfleet.errors import ControlError
from sparkfleet.runtime.sealed_env import PREFIX, EnvSealer, is_sealed, is_setting

SEALER = EnvSealer(b"s" * 43)


@given(st.text(min_size=1).filter(lambda text: not text.startswith(PREFIX)))
def test_a_value_comes_back_and_is_not_in_its_sealed_text(value):
    sealed = SEALER.seal("HF_TOKEN", value)
    assert is_sealed(sealed)
    assert len(value) < 4 or value not in sealed
    assert SEALER.open("HF_TOKEN", sealed) == value


def test_equal_values_are_equal_and_sealed_ones_stay_as_they_are():
    sealed = SEALER.seal("HF_TOKEN", "hf_abc")
    assert SEALER.seal("HF_TOKEN", "hf_abc") == sealed == SEALER.seal("HF_TOKEN", sealed)
    assert SEALER.seal("HF_TOKEN", "hf_abd") != sealed


@pytest.mark.parametrize(
    ("name", "sealed"),
    [
        ("OTHER", SEALER.seal("HF_TOKEN", "hf_abc")),
        ("HF_TOKEN", EnvSealer(b"t" * 43).seal("HF_TOKEN", "hf_abc")),
        ("HF_TOKEN", SEALER.seal("HF_TOKEN", "hf_abc")[:-8] + "AAAAAAA="),
        ("HF_TOKEN", PREFIX + "é"),
        ("HF_TOKEN", PREFIX),
    ],
    ids=["other name", "other fleet", "changed", "no base64", "empty"],
)
def test_what_this_fleet_did_not_seal_for_this_name_is_refused(name, sealed):
    for use in (SEALER.open, SEALER.seal):
        with pytest.raises(ControlError, match=f"variable {name} cannot be opened"):
            use(name, sealed)


@pytest.mark.parametrize("name", ["VLLM_ATTENTION_BACKEND", "NCCL_DEBUG", "SGLANG_ENABLE_JIT_DEEPGEMM"])
def test_settings_stay_readable(name):
    assert is_setting(name)
    assert SEALER.seal(name, "1") == "1"


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_NCCL_DEBUG", "PROXY"]
)
def test_all_else_is_sealed(name):
    assert not is_setting(name)
    assert is_sealed(SEALER.seal(name, "1"))


def test_what_rules_read_stays_readable():
    text = (Path(knowledge.__file__).parent / "rules/rules.yaml").read_text()
    mappings = re.findall(r"env: \{(.*?)\}", text)
    names = {name for one in mappings for name in re.findall(r"\b([A-Z][A-Za-z0-9]*_\w+)[:=]", one)}
    assert {"VLLM_MARLIN_USE_ATOMIC_ADD", "TRITON_PTXAS_PATH"} < names
    assert [name for name in sorted(names) if not is_setting(name)] == []

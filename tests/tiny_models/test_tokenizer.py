from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello!"}


@pytest.fixture(scope="module")
def loaded(checkpoint) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(checkpoint)


@given(text=st.text())
def test_any_text_is_decoded_as_it_was(loaded, text):
    assert loaded.decode(loaded.encode(text)) == text


@pytest.mark.parametrize(
    "text", ["", " a  b ", "e\u0301 \u00e9", "\U0001f680\u200d", "a\r\n\tb", "\ufb01 \u2460", "don 't , no ."]
)
def test_text_that_tokenizers_like_to_change_is_not_changed(loaded, text):
    assert loaded.decode(loaded.encode(text)) == text


def test_every_special_token_is_one_token(loaded, small):
    for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        assert len(loaded.encode(text)) == 1
    assert loaded.eos_token == "<|im_end|>"
    assert loaded.pad_token == "<|endoftext|>"
    assert len(loaded) == small.vocabulary


def test_special_tokens_can_be_left_out(loaded):
    ids = loaded.apply_chat_template([QUESTION, ANSWER], tokenize=True, return_dict=False)
    assert loaded.decode(ids, skip_special_tokens=True) == "user\nHi\nassistant\nHello!\n"


@pytest.mark.parametrize(
    ("messages", "open_turn", "text"),
    [
        ([QUESTION], False, "<|im_start|>user\nHi<|im_end|>\n"),
        ([QUESTION], True, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (
            [SYSTEM, QUESTION],
            False,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
        ),
        (
            [QUESTION, ANSWER],
            False,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n",
        ),
        ([{**SYSTEM, "role": "developer"}], False, "<|im_start|>system\nBe brief.<|im_end|>\n"),
        ([{"role": "assistant", "content": None}], False, "<|im_start|>assistant\n<|im_end|>\n"),
    ],
)
def test_chat_template(loaded, messages, open_turn, text):
    assert loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=open_turn) == text


def test_prose_gets_no_special_tokens(loaded):
    assert not set(loaded("A node is one Spark.")["input_ids"]) & set(loaded.all_special_ids)

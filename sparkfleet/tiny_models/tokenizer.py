"""The byte-level BPE tokenizer of a checkpoint, its special tokens and its chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

from sparkfleet.tiny_models.corpus import Corpus

END_OF_TEXT = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
SPECIAL = (END_OF_TEXT, START, END)
"""Their ids are their positions in this tuple."""


def learn(corpus: Corpus, vocabulary: int) -> Tokenizer:
    """Trains a tokenizer of at most `vocabulary` tokens on the corpus. It encodes any text, at worst byte by byte."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(corpus), trainer)
    return tokenizer


def _texts(corpus: Corpus) -> Iterator[str]:
    yield "system\nuser\nassistant\n"
    yield from corpus.passages
    yield from corpus.systems
    for conversation in corpus.conversations:
        for turn in conversation:
            yield from turn.phrasings
            yield turn.answer


def save(tokenizer: Tokenizer, directory: Path, max_tokens: int) -> None:
    """Writes the files that `AutoTokenizer` and engines read. `max_tokens` is the longest text of the model."""
    tokenizer.save(str(directory / "tokenizer.json"))
    template = chat_template()
    (directory / "chat_template.jinja").write_text(template, "utf-8")
    config = {
        # The generic class: the architecture's own adds Unicode normalisation, so that decoding would not restore the text.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "bos_token": None,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [START, END],
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def chat_template() -> str:
    """ChatML as Jinja: any role, and the opening of the assistant's turn for a generation."""
    return (resources.files("sparkfleet.tiny_models") / "chat_template.jinja").read_text("utf-8")

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
"""Their ids are their places here."""


def learn(corpus: Corpus, vocabulary: int) -> Tokenizer:
    """A tokenizer of at most `vocabulary` tokens, learnt from the corpus. It encodes any text, byte by byte at worst."""
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
    """Write what `AutoTokenizer` and the engines read. `max_tokens` is the longest text the model can take."""
    tokenizer.save(str(directory / "tokenizer.json"))
    template = chat_template()
    (directory / "chat_template.jinja").write_text(template, "utf-8")
    config = {
        # The generic class: the architecture's own would add Unicode normalisation, and text would not come back as it was.
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
    """ChatML as Jinja: any role, and the opening of the assistant's turn when a generation is asked for."""
    return (resources.files("sparkfleet.tiny_models") / "chat_template.jinja").read_text("utf-8")

"""Reads the text that recipes are trained on (`text/*.txt`) as documents. Needs only the standard library.

The format of the files is explained at the top of `text/talk.txt`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from importlib import resources

from sparkfleet.errors import SpecError
from sparkfleet.values import Value

ASK = (
    "What is {}?",
    "What's {}?",
    "What is {}",
    "Explain {}.",
    "Explain to me what {} is.",
    "Tell me about {}.",
    "Can you explain {}?",
    "What do you mean by {}?",
    "What do you know about {}?",
    "Describe {}.",
    "Define {}.",
    "I do not know what {} is.",
    "What exactly is {}?",
    "How does {} work?",
    "What does {} do?",
    "What is {} good for?",
    "What is the use of {}?",
    "Why do we need {}?",
    "Why is there {}?",
    "{}?",
    "{}",
)
"""Questions that a `~` line is expanded to."""

BEFORE = (
    "Please tell me: ",
    "Can you tell me: ",
    "Could you please tell me, ",
    "I would like to know: ",
    "Hi! ",
    "Hello, ",
    "Hey tiny, ",
    "I have a question. ",
    "So, ",
    "And ",
    "Please: ",
    "One more thing: ",
)
AFTER = (
    " please",
    ", please",
    " exactly",
    ", tiny",
    " in your words",
    " Thanks.",
    " Please be brief.",
    " Answer in one sentence.",
)
SHORTENED = (
    ("What is", "What's"),
    ("What is", "Whats"),
    ("Can you", "Could you"),
    ("I do not", "I don't"),
    ("Tell me", "Please tell me"),
)
DROPPED_WORD_SHARE = 0.12
SYSTEM_SHARE = 0.5
MOST_WORDS = 180
"""Limit of words in joined conversations, so that they fit in a row (one word is about 1.4 tokens)."""
ANSWER_AS_PROSE_SHARE = 0.15


class Turn(Value):
    """One question in all its phrasings, and its answer."""

    phrasings: tuple[str, ...]
    answer: str


class Corpus(Value):
    """Parses text files. A conversation has one turn, or several if a follow-up refers to an earlier one."""

    conversations: tuple[tuple[Turn, ...], ...] = ()
    passages: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()

    def __add__(self, other: Corpus) -> Corpus:
        return Corpus(
            conversations=self.conversations + other.conversations,
            passages=self.passages + other.passages,
            systems=self.systems + other.systems,
        )


class Message(Value):
    """One message of a chat, in the form of the chat template."""

    role: str
    content: str


TrainingText = tuple[Message, ...] | str
"""A conversation, or a passage of prose."""


def read(name: str) -> str:
    """The packaged text file of that name. Raises SpecError if there is none."""
    try:
        return (resources.files("sparkfleet.tiny_models") / "text" / name).read_text("utf-8")
    except FileNotFoundError:
        raise SpecError(f"{name}: text: this file does not exist in sparkfleet/tiny_models/text.") from None


def load(names: Sequence[str]) -> Corpus:
    """All files of a recipe as one corpus."""
    corpus = Corpus()
    for name in names:
        corpus += parse(read(name), name)
    return corpus


def parse(text: str, source: str) -> Corpus:
    """The corpus in the text of one file.

    Raises:
        SpecError: a line does not follow the format; the error has `source` and the line.
    """
    corpus = Corpus()
    for block in _blocks(text):
        corpus += _block(block, source)
    return corpus


CorpusLine = tuple[int, str, str]
"""Number in the file, sign, content."""


def _blocks(text: str) -> Iterator[list[CorpusLine]]:
    block: list[CorpusLine] = []
    for number, raw in enumerate([*text.splitlines(), ""], start=1):
        line = raw.strip()
        if line.startswith("#"):
            continue
        if line:
            block.append((number, line[0], line[1:].strip()))
        elif block:
            yield block
            block = []


def _block(block: list[CorpusLine], source: str) -> Corpus:
    for number, sign, content in block:
        if sign not in "?~!=@" or not content:
            raise SpecError(
                f"{source}:{number}: text: expected a line that begins with ? ~ ! = @ or #, followed by text.",
                do="The format is explained at the top of talk.txt.",
            )
    signs = {sign for _, sign, _ in block}
    if signs == {"="}:
        return Corpus(passages=(" ".join(content for _, _, content in block),))
    if signs == {"@"}:
        return Corpus(systems=tuple(content for _, _, content in block))
    return Corpus(conversations=(tuple(_turns(block, source)),))


def _turns(block: list[CorpusLine], source: str) -> Iterator[Turn]:
    phrasings: list[str] = []
    answer: list[str] = []
    for number, sign, content in block:
        if sign in "=@" or (sign == "!" and not phrasings):
            raise SpecError(
                f'{source}:{number}: text: "{sign}" does not belong here: a turn is questions, then an answer.'
            )
        if sign != "!" and answer:
            yield Turn(phrasings=tuple(phrasings), answer=" ".join(answer))
            phrasings, answer = [], []
        if sign == "!":
            answer.append(content)
        else:
            phrasings += [content] if sign == "?" else _ways_to_ask(content)
    if not answer:
        raise SpecError(f"{source}:{block[-1][0]}: text: this question has no answer.")
    yield Turn(phrasings=tuple(phrasings), answer=" ".join(answer))


def _ways_to_ask(thing: str) -> list[str]:
    return [way.format(thing) for way in ASK]


def documents(corpus: Corpus, rng: random.Random, *, follow_on: float = 0.5) -> list[TrainingText]:
    """One pass over the corpus in a new order: every conversation once, in one of its phrasings, and every passage.

    With probability `follow_on` the next conversation is appended, so that the model learns to answer the last question.
    """
    singles = [_messages(conversation, rng) for conversation in corpus.conversations]
    rng.shuffle(singles)
    chats = [_with_system(chat, corpus, rng) for chat in _chained(singles, rng, follow_on)]
    answers = [
        turn.answer for chat in corpus.conversations for turn in chat if rng.random() < ANSWER_AS_PROSE_SHARE
    ]
    everything: list[TrainingText] = [*chats, *corpus.passages, *answers]
    rng.shuffle(everything)
    return everything


def _messages(conversation: tuple[Turn, ...], rng: random.Random) -> tuple[Message, ...]:
    messages: list[Message] = []
    for turn in conversation:
        messages.append(Message(role="user", content=_in_other_words(rng.choice(turn.phrasings), rng)))
        messages.append(Message(role="assistant", content=turn.answer))
    return tuple(messages)


def _chained(
    chats: list[tuple[Message, ...]], rng: random.Random, follow_on: float
) -> Iterator[tuple[Message, ...]]:
    chat: tuple[Message, ...] = ()
    for following in chats:
        if chat and (_words(chat) + _words(following) > MOST_WORDS or rng.random() >= follow_on):
            yield chat
            chat = ()
        chat += following
    if chat:
        yield chat


def _words(chat: tuple[Message, ...]) -> int:
    return sum(len(message.content.split()) for message in chat)


def _with_system(chat: tuple[Message, ...], corpus: Corpus, rng: random.Random) -> tuple[Message, ...]:
    if not corpus.systems or rng.random() >= SYSTEM_SHARE:
        return chat
    return (Message(role="system", content=rng.choice(corpus.systems)), *chat)


def _in_other_words(question: str, rng: random.Random) -> str:
    """The question in other words, so that the model also answers phrasings that the text does not have."""
    if rng.random() < 0.2:
        question = question.replace(*rng.choice(SHORTENED))
    if rng.random() < 0.3:
        question = _without_some_words(question, rng)
    if rng.random() < 0.3:
        question = question.rstrip("?.!")
    if rng.random() < 0.15:
        question = question.rstrip("?.!") + rng.choice(AFTER)
    if rng.random() < 0.3:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.15:
        question = rng.choice(BEFORE) + question
    return question.lower() if rng.random() < 0.1 else question


def _without_some_words(question: str, rng: random.Random) -> str:
    kept = [word for word in question.split() if rng.random() >= DROPPED_WORD_SHARE]
    return " ".join(kept) or question

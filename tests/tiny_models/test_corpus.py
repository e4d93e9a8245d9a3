from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import SpecError
from sparkfleet.tiny_models import corpus
from sparkfleet.tiny_models.corpus import Corpus, Turn, documents, parse
from sparkfleet.tiny_models.recipes import TINY

TEXT = """
# a comment
? Who is there?
? Who?
! It is me,
! the model.
? Really?
! Yes.

~ a node
! A node is one Spark.

= Once upon
= a time.

@ Be brief.
@ Be kind.
"""


def test_parse():
    found = parse(TEXT, "test.txt")
    who, node = found.conversations
    assert who == (
        Turn(phrasings=("Who is there?", "Who?"), answer="It is me, the model."),
        Turn(phrasings=("Really?",), answer="Yes."),
    )
    assert "What is a node?" in node[0].phrasings
    assert len(node[0].phrasings) == len(corpus.ASK)
    assert found.passages == ("Once upon a time.",)
    assert found.systems == ("Be brief.", "Be kind.")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("hello", "x.txt:1: text: expected a line"),
        ("? a\n! b\n\n?", "x.txt:4: text: expected a line"),
        ("? a", "x.txt:1: text: this question has no answer"),
        ("? a\n! b\n? c", "x.txt:3: text: this question has no answer"),
        ("! b", 'x.txt:1: text: "!" does not belong here'),
        ("? a\n! b\n= c", 'x.txt:3: text: "=" does not belong here'),
        ("? a\n@ c\n! b", 'x.txt:2: text: "@" does not belong here'),
    ],
)
def test_an_error_has_the_wrong_line(text, where):
    with pytest.raises(SpecError) as caught:
        parse(text, "x.txt")
    assert caught.value.what.startswith(where)


@given(st.text(alphabet="?~!=@# ab\n"))
def test_any_text_is_read_or_refused_with_its_line(text):
    found = Corpus()
    refusal = "x.txt:"
    try:
        found = parse(text, "x.txt")
    except SpecError as error:
        refusal = error.what
    assert refusal.startswith("x.txt:")
    assert all(turn.phrasings and turn.answer for chat in found.conversations for turn in chat)


def test_a_missing_file():
    with pytest.raises(SpecError, match="does not exist"):
        corpus.load(("nothing.txt",))


@pytest.fixture(scope="module")
def shipped() -> Corpus:
    return corpus.load(TINY.text)


def test_no_question_has_two_answers(shipped):
    answers: dict[str, str] = {}
    for turn in (chat[0] for chat in shipped.conversations):
        for phrasing in turn.phrasings:
            key = phrasing.lower().rstrip("?.! ")
            assert answers.setdefault(key, turn.answer) == turn.answer, phrasing


def test_a_pass_holds_every_conversation_and_passage_once(shipped):
    chats = [document for document in documents(shipped, random.Random(1)) if not isinstance(document, str)]
    said = sorted(message.content for chat in chats for message in chat if message.role == "assistant")
    assert said == sorted(turn.answer for chat in shipped.conversations for turn in chat)
    prose = [document for document in documents(shipped, random.Random(1)) if isinstance(document, str)]
    assert set(shipped.passages) <= set(prose)


def test_passes_differ_but_the_same_seed_gives_the_same(shipped):
    one, again = random.Random(1), random.Random(1)
    first = documents(shipped, one)
    assert first == documents(shipped, again)
    assert first != documents(shipped, one)


def test_some_conversations_have_a_system_prompt_and_some_go_on(shipped):
    chats = [document for document in documents(shipped, random.Random(1)) if not isinstance(document, str)]
    assert {chat[0].role for chat in chats} == {"system", "user"}
    assert any(sum(message.role == "user" for message in chat) > 2 for chat in chats)


@given(st.integers())
def test_a_question_in_other_words_is_never_empty(seed):
    assert corpus._in_other_words("Why?", random.Random(seed)).strip()

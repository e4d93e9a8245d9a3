from __future__ import annotations

import json
import math
import random
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from sparkfleet.engines.token_scores import TEXT
from sparkfleet.errors import FactError
from sparkfleet.tiny_models import corpus, quality, tokenizer, training
from sparkfleet.tiny_models.criterion import Criterion, Quality
from sparkfleet.tiny_models.recipes import HYBRID, TINY

CHAT = (
    corpus.Message(role="user", content="Who?"),
    corpus.Message(role="assistant", content="It is me, tiny."),
)


@pytest.fixture(scope="module")
def text(small):
    return corpus.load(small.text)


@pytest.fixture(scope="module")
def bpe(small, text):
    return tokenizer.learn(text, small.vocabulary)


class TestCheckpoint:
    def test_holds_what_engines_read(self, checkpoint):
        assert {file.name for file in checkpoint.iterdir()} == {
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        }

    def test_is_a_qwen3_in_bfloat16(self, checkpoint, small):
        config = AutoConfig.from_pretrained(checkpoint)
        assert config.architectures == ["Qwen3ForCausalLM"]
        assert config.vocab_size == small.vocabulary
        with safe_open(checkpoint / "model.safetensors", "pt") as weights:
            assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.bfloat16}  # noqa: SIM118

    def test_special_tokens_agree_everywhere(self, checkpoint):
        config = AutoConfig.from_pretrained(checkpoint)
        generation = GenerationConfig.from_pretrained(checkpoint)
        ids = AutoTokenizer.from_pretrained(checkpoint).convert_tokens_to_ids(list(tokenizer.SPECIAL))
        assert ids == [0, 1, 2]
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 2, 0)
        assert generation.eos_token_id == [2, 0]

    def test_can_generate(self, checkpoint):
        model = AutoModelForCausalLM.from_pretrained(checkpoint)
        out = model.generate(torch.tensor([[1, 5, 6]]), max_new_tokens=4, min_new_tokens=4, do_sample=False)
        assert out.shape == (1, 7)

    def test_names_no_path_of_this_machine(self, checkpoint):
        for file in checkpoint.glob("*.json"):
            assert str(checkpoint) not in file.read_text("utf-8")
            assert str(Path.home()) not in file.read_text("utf-8")


def test_the_same_recipe_gives_the_same_bytes(checkpoint, small, tmp_path):
    torch.manual_seed(1234)  # whatever the process did before
    torch.rand(3)
    training.build(small, tmp_path, lambda _: None)
    for file in checkpoint.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_hybrid_has_its_own_output_matrix(small, tmp_path):
    """vLLM does not take the vocabulary's for it, with any configuration."""
    shape = {**HYBRID.config, "hidden_size": 64, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
    recipe = small.model_copy(update={"model_type": HYBRID.model_type, "config": shape})
    training.build(recipe, tmp_path, lambda _: None)
    assert not AutoConfig.from_pretrained(tmp_path).tie_word_embeddings
    with safe_open(tmp_path / "model.safetensors", "pt") as weights:
        output, vocabulary = map(weights.get_tensor, ("lm_head.weight", "model.embed_tokens.weight"))
    assert torch.equal(output, vocabulary)


def test_another_seed_gives_other_weights(checkpoint, small, tmp_path):
    other = small.model_copy(update={"budget": small.budget.model_copy(update={"seed": 1})})
    training.build(other, tmp_path, lambda _: None)
    file = "model.safetensors"
    assert (tmp_path / file).read_bytes() != (checkpoint / file).read_bytes()


def test_the_state_of_the_process_is_restored(small):
    torch.manual_seed(7)
    wanted = torch.rand(2)
    torch.manual_seed(7)
    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
    with training.deterministic(small.budget.model_copy(update={"threads": 1})):
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.get_num_threads() == 1
        torch.rand(5)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before
    assert torch.equal(torch.rand(2), wanted)


def test_every_step_is_reported(checkpoint, small, small_progress):
    assert checkpoint.is_dir()
    steps = [progress for progress in small_progress if progress.phase == "training"]
    assert [progress.step for progress in steps] == list(range(1, small.budget.steps + 1))
    assert steps[-1].eta_s == 0
    assert [small_progress[0].phase, small_progress[-1].phase] == ["tokenizer", "saving"]


def test_learning_rate_rises_and_falls_to_nothing():
    factors = [training.learning_rate_factor(step, TINY.budget) for step in range(TINY.budget.steps + 1)]
    top = factors.index(1.0)
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)
    assert factors[-1] == pytest.approx(0.0)


def _with_prose(row: training.Row, text: corpus.Corpus, bpe: Tokenizer) -> bool:
    return any(passage in bpe.decode(row.ids) for passage in text.passages)


class TestRows:
    def test_a_document_is_what_the_chat_template_renders(self, checkpoint, text, small):
        rendering = AutoTokenizer.from_pretrained(checkpoint)
        bpe = rendering.backend_tokenizer
        wide = small.budget.model_copy(update={"row_tokens": 4096})
        chats = [chat for chat in corpus.documents(text, random.Random(3)) if not isinstance(chat, str)]
        for chat in chats[:40]:
            messages = [message.model_dump() for message in chat]
            rendered = rendering.apply_chat_template(messages, tokenize=True, return_dict=False)
            assert training.encode(chat, bpe, wide).ids == rendered

    def test_all_rows_are_full_and_have_something_to_learn(self, text, bpe):
        dealt = list(islice(training.rows(text, bpe, TINY.budget), 200))
        assert {len(part) for row in dealt for part in row} == {TINY.budget.row_tokens}
        assert all(max(row.weights) >= 1.0 for row in dealt)

    def test_padding_has_no_weight(self, bpe, small):
        (row,) = training._packed([training.encode("Hi.", bpe, small.budget)], small.budget.row_tokens)
        used = len(bpe.encode("Hi.<|endoftext|>").ids)
        assert row.weights[used:] == [0.0] * (small.budget.row_tokens - used)

    def test_the_opening_cuts_answers(self, bpe, small):
        budget = small.budget.model_copy(update={"opening_tokens": 3})
        cut, whole = (training.encode(CHAT, bpe, budget, opening=opening) for opening in (True, False))
        assert sum(weight >= 1.0 for weight in cut.weights) == 3
        assert sum(weight >= 1.0 for weight in whole.weights) > 3

    def test_prose_comes_after_the_opening(self, text, bpe, small):
        budget = small.budget.model_copy(update={"row_tokens": 4096, "rows": 1, "opening_steps": 1})
        in_rows = [_with_prose(row, text, bpe) for row in islice(training.rows(text, bpe, budget), 12)]
        assert not in_rows[0]
        assert any(in_rows)

    def test_the_first_tokens_of_an_answer_weigh_most(self, bpe, small):
        row = training.encode(CHAT, bpe, small.budget)
        assert row.weights.count(small.budget.first_weight) == small.budget.first_tokens
        assert row.weights[0] == small.budget.question_weight

    def test_documents_in_a_row_do_not_see_each_other(self, checkpoint, bpe, small):
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="sdpa"
        )
        one, other, last = (
            training.encode(text, bpe, small.budget) for text in ("A node.", "Two rails!", "It is late.")
        )

        def logits_of_last(*before: training.Row) -> torch.Tensor:
            row = training.Row([], [], [])
            for document in (*before, last):
                row.extend(document)
            with torch.no_grad():
                out = model(
                    input_ids=torch.tensor([row.ids]),
                    position_ids=torch.tensor([row.places]),
                    use_cache=False,
                )
            return out.logits[0, -len(last.ids) :]

        torch.testing.assert_close(logits_of_last(one), logits_of_last(other, one), rtol=1e-5, atol=1e-5)


def test_tokenizer_config_is_plain(checkpoint):
    config = json.loads((checkpoint / "tokenizer_config.json").read_text("utf-8"))
    assert config["eos_token"] == tokenizer.END
    assert config["chat_template"] == (checkpoint / "chat_template.jinja").read_text("utf-8")


class TestRounds:
    """A training of one number, with the quality that the test gives."""

    def course(self, *judged):
        left, weight = list(judged), torch.ones(1, requires_grad=True)
        return training.Course(
            parameters=[weight],
            next_loss=(lambda: torch.sum(weight**2)),
            present=lambda: 7.0,
            judge=lambda: Quality(text_perplexity=left.pop(0)),
            vocabulary=512,
        )

    def recipe(self, small, **budget):
        wanted = small.budget.model_copy(update={"extra_steps": 3, **budget})
        return small.model_copy(update={"budget": wanted, "criterion": Criterion(text_perplexity=6)})

    def test_one_round_is_enough_for_a_model_that_meets_its_criterion(self, small):
        reached = training.descend(self.course(3.0), self.recipe(small), lambda _: None)
        assert reached == (small.budget.steps, Quality(text_perplexity=3.0))

    def test_rounds_go_on_until_the_criterion_is_met(self, small):
        said = []
        reached = training.descend(self.course(30.0, 9.0, 6.0), self.recipe(small), said.append)
        assert reached.steps == small.budget.steps + 2 * 3
        assert [one.step for one in said] == list(range(1, reached.steps + 1))
        assert said[-1].step == said[-1].steps
        assert all(0 < one.step <= one.steps and one.limit == 6 for one in said)

    def test_a_model_that_misses_its_criterion_fails_with_its_numbers(self, small):
        with pytest.raises(FactError, match=r"in 10 steps: perplexity of the known text 8 \(at most 6\)"):
            training.descend(self.course(30.0, 9.0, 8.0), self.recipe(small, most_steps=12), lambda _: None)

    def test_the_present_value_is_part_of_the_progress(self, small, monkeypatch):
        monkeypatch.setattr(training, "MEASURED_EVERY", 2)
        said = []
        training.descend(self.course(3.0), self.recipe(small), said.append)
        assert [one.value for one in said] == [None, 7.0, 7.0, 7.0]


def test_a_model_that_misses_its_criterion_is_not_written(small, tmp_path):
    wanted = small.model_copy(update={"criterion": Criterion(own_agreement=1.1)})
    with pytest.raises(FactError, match="own tokens chosen again"):
        training.build(
            wanted.model_copy(update={"budget": small.budget.model_copy(update={"most_steps": 4})}),
            tmp_path,
            lambda _: None,
        )
    assert not list(tmp_path.iterdir())


def test_the_quality_is_that_of_the_saved_model(checkpoint, small):
    """Read again from the files, it measures the same."""
    model = training.read(checkpoint, torch.float32)
    bpe = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    again = quality.measure(model, bpe, training.ENDS)
    assert again.text_perplexity == pytest.approx(
        math.exp(model(input_ids=(ids := torch.tensor([bpe.encode(TEXT).ids])), labels=ids).loss.item()),
        rel=1e-4,
    )
    assert again.text_perplexity > 100, "four steps teach nothing"

from __future__ import annotations

import pytest
import torch

from sparkfleet.tiny_models import heads
from sparkfleet.tiny_models.layers import HeadLayer, HeadShape

SHAPE = HeadShape(
    hidden=32, intermediate=32, heads=2, kv_heads=1, head_dim=16, vocabulary=64, eps=1e-6, theta=10000.0
)
LENGTH = 96
METHODS = sorted(heads.NEW)


@pytest.fixture
def lesson() -> heads.Lesson:
    """Two rows of two documents each. The model's next token is the next one of the text."""
    torch.manual_seed(0)
    ids = (torch.arange(LENGTH) * 7 % 61 + 2).repeat(2, 1)
    ids[1] = ids[1].flip(0)
    half = torch.arange(LENGTH // 2)
    vocabulary = torch.randn(64, 32)
    following = torch.nn.functional.one_hot(ids.roll(-1, dims=1), 64).float()
    return heads.Lesson(
        ids=ids,
        places=torch.cat([half, half]).repeat(2, 1),
        sampled=torch.ones(2, LENGTH, dtype=torch.bool),
        streams=tuple(vocabulary[ids] * scale for scale in (1.0, 0.5, 2.0)),
        logits=following * 12,
        vocabulary=vocabulary,
        output=torch.randn(64, 32),
    )


def new_head(method: str) -> HeadLayer:
    torch.manual_seed(1)
    return HeadLayer(heads.NEW[method](SHAPE), SHAPE)


def loss_of(method: str, head: HeadLayer, lesson: heads.Lesson) -> torch.Tensor:
    torch.manual_seed(2)  # the same blocks for DFlash
    return heads.LOSS[method](head, lesson).loss


@pytest.mark.parametrize("method", METHODS)
def test_every_weight_is_trained(method, lesson):
    head = new_head(method)
    for weight in head.weights.values():
        weight.requires_grad_()
    loss_of(method, head, lesson).backward()
    assert [name for name, weight in head.weights.items() if weight.grad is None] == []


@pytest.mark.parametrize("method", METHODS)
def test_a_head_learns(method, lesson):
    head = new_head(method)
    parameters = [weight.requires_grad_() for weight in head.weights.values()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    before = loss_of(method, head, lesson).item()
    for _ in range(30):
        optimizer.zero_grad()
        loss_of(method, head, lesson).backward()
        optimizer.step()
    assert loss_of(method, head, lesson).item() < before / 2


@pytest.mark.parametrize("method", METHODS)
def test_only_generated_tokens_are_trained_on(method, lesson):
    head = new_head(method)
    said = lesson.sampled.clone()
    said[:, LENGTH // 4 : LENGTH // 2] = False
    logits = lesson.logits.clone()
    logits[:, LENGTH // 4 - 1 : LENGTH // 2 - 1] = 0.0  # what is wanted of tokens that are not said
    quiet = lesson._replace(sampled=said)
    assert loss_of(method, head, quiet) == loss_of(method, head, quiet._replace(logits=logits))
    assert loss_of(method, head, lesson) != loss_of(method, head, lesson._replace(logits=logits))


@pytest.mark.parametrize("method", METHODS)
def test_a_document_is_not_read_in_another(method, lesson):
    """The second document's loss does not depend on what the first one was."""
    head, half = new_head(method), LENGTH // 2
    said = lesson.sampled.clone()
    said[:, :half] = False
    second = lesson._replace(sampled=said)
    streams = tuple(stream.clone() for stream in lesson.streams)
    for stream in streams:
        stream[:, :half] = 1.0
    other = second._replace(streams=streams)
    torch.testing.assert_close(loss_of(method, head, second), loss_of(method, head, other))


def test_a_block_of_dflash_sees_earlier_tokens_and_itself(lesson):
    anchors = torch.tensor([[0, 5, *range(50, 50 + heads.ANCHORS - 2)]] * 2) % LENGTH
    mask = heads._dflash_mask(lesson, anchors)
    assert mask.shape == (2, heads.ANCHORS * heads.BLOCK, LENGTH + heads.ANCHORS * heads.BLOCK)
    first, second, third = (mask[0, number * heads.BLOCK] for number in range(3))
    assert first[:LENGTH].sum() == 0
    assert second[:LENGTH].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    assert third[:LENGTH].nonzero().flatten().tolist() == [48, 49], "in the same document"
    assert second[LENGTH:].nonzero().flatten().tolist() == [4, 5, 6, 7]


def test_eagle3_drafts_from_known_tokens(lesson, monkeypatch):
    """Its drafts after a token do not depend on later ones, in its first step nor in its second."""
    said: list[torch.Tensor] = []

    def listen(states, lesson, step):
        said.append(states.detach())
        return heads.Taught(states.sum() * 0, 0.0)

    monkeypatch.setattr(heads, "_surprise", listen)
    head, place = new_head("eagle3"), 20
    ids, streams = lesson.ids.clone(), tuple(stream.clone() for stream in lesson.streams)
    ids[:, place + 2 + heads.EAGLE_STEPS :] = 3
    for stream in streams:
        stream[:, place + 1 :] = 0.0
    heads.eagle3_loss(head, lesson)
    heads.eagle3_loss(head, lesson._replace(ids=ids, streams=streams))
    for before, after in zip(said[: heads.EAGLE_STEPS], said[heads.EAGLE_STEPS :], strict=True):
        torch.testing.assert_close(before[:, : place + 1], after[:, : place + 1])
        assert not torch.equal(before, after)

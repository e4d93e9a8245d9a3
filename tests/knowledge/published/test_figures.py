"""Published rates with their checkpoint, text and load."""

from __future__ import annotations

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.data_file import packaged
from sparkfleet.knowledge.models.model_names import plain
from sparkfleet.knowledge.published import figures
from sparkfleet.knowledge.published.evidence import FILE as EVIDENCE
from sparkfleet.knowledge.published.evidence import Evidence, EvidenceLevel, PublishedEvidence, read_evidence
from sparkfleet.knowledge.published.figures import FILE, PublishedFigure, nearest_figure, pair_of

MINE = "nvidia/Qwen3.8-27B-NVFP4"
OTHER = "RadixArk/Qwen3.8-27B-NVFP4"


def figure(checkpoint: str, tps: float, content: str = "mixed", **given: object) -> PublishedFigure:
    fields = {
        "model": "qwen3.8-27b",
        "engine": "vllm",
        "method": "mtp",
        "format": "nvfp4",
        "nodes": 1,
        "source": "a/b",
        "checkpoint": checkpoint,
        "content": content,
        "requests": 1,
        "rows": 1,
        "tps": tps,
        "expected": 2 * tps,
    }
    return PublishedFigure.model_validate(fields | given)


def proof(nodes: int = 1, model: str = "qwen3.8-27b", level: EvidenceLevel = EvidenceLevel.MODEL) -> Evidence:
    run = PublishedEvidence(
        model=model,
        family="f",
        engine="vllm",
        method="mtp",
        format="nvfp4",
        nodes=nodes,
        rows=1,
        sources=("a/b", "c/d"),
    )
    return Evidence(level, (run,), (level,), nodes)


@pytest.fixture
def published(monkeypatch):
    def use(*found: PublishedFigure) -> None:
        monkeypatch.setattr(figures, "figures", lambda: figures.by_setup(found))

    return use


@pytest.mark.parametrize(
    ("text", "checkpoint", "expected"),
    [
        (MINE, MINE, True),
        (MINE.lower(), MINE, True),
        (OTHER, MINE, False),
        ("MiniMax-M2.7 (olka-fi/MiniMax-M2.7-MXFP4)", "olka-fi/MiniMax-M2.7-MXFP4", True),
        ("Qwen/Qwen3.8-Flash-Next (RadixArk NVFP4)", "RadixArk/Qwen3.8-Flash-Next-NVFP4", True),
        ("Qwen/Qwen3.8-Flash-Next (RadixArk NVFP4)", "nvidia/Qwen3.8-Flash-Next-NVFP4", False),
        # Quantised when it was loaded, and the maker's own checkpoint of that format.
        ("Qwen/Qwen3.6-27B", "Qwen/Qwen3.6-27B-FP8", True),
        # The model is named, the repository of its other format is not.
        ("Qwen/Qwen3.6-27B", "nvidia/Qwen3.6-27B-NVFP4", None),
        ("openai/gpt-oss-120b GGUF", "ggml-org/gpt-oss-120b-GGUF:MXFP4", None),
        ("Qwen3.8-Flash-Next NVFP4", "nvidia/Qwen3.8-Flash-Next-NVFP4", None),
        # Changed by whoever measured it.
        ("nvidia/GLM-5.3-Flash-NVFP4 (+NVFP4 attn)", "nvidia/GLM-5.3-Flash-NVFP4", False),
        ("RadixArk/Qwen3.8-27B-NVFP4", "RadixArk/Qwen3.8-27B-NVFP4-BF16-LMHead", False),
    ],
)
def test_whose_checkpoint_it_was(text: str, checkpoint: str, expected: bool | None) -> None:
    assert figure(text, 10.0, model=plain(text)).is_of(checkpoint) is expected


def test_the_rate_of_the_own_checkpoint_comes_first(published) -> None:
    published(figure(OTHER, 60.0), figure(MINE, 40.0), figure("Qwen3.8-27B NVFP4", 50.0))
    found = nearest_figure(proof(), MINE, "mixed")
    assert (found.tps, found.expected, found.is_alike) == (40.0, 80.0, True)
    assert found.words == "published: 40"


def test_another_checkpoint_is_named(published) -> None:
    """52.8 tok/s of RadixArk's stood beside NVIDIA's without a word."""
    published(figure(OTHER, 60.0))
    found = nearest_figure(proof(), MINE, "mixed")
    assert (found.of, found.is_alike) == (OTHER, False)
    assert found.words == f"published: 60 of {OTHER}"
    published(figure("Qwen3.8-27B NVFP4", 50.0))
    assert nearest_figure(proof(), MINE, "mixed").words == "published: 50 of an unnamed repository"


def test_the_same_text_comes_first_and_another_is_named(published) -> None:
    published(figure(MINE, 70.0, "code"), figure(OTHER, 40.0, "mixed"))
    assert nearest_figure(proof(), MINE, "mixed").of == OTHER
    assert nearest_figure(proof(), MINE, "code").words == "published: 70"
    assert nearest_figure(proof(), MINE, "prose").words == "published: 70 on code"
    published(figure(MINE, 70.0, "code"), figure(MINE, 40.0, "mixed"))
    assert nearest_figure(proof(), MINE, "prose").words == "published: 55 on code and mixed text"


def test_without_drafts_the_text_does_not_count(published) -> None:
    run = proof().runs[0].model_copy(update={"method": "none"})
    published(figure(MINE, 10.0, "code", method="none"))
    found = nearest_figure(Evidence(EvidenceLevel.MODEL, (run,), (EvidenceLevel.MODEL,)), MINE, "prose")
    assert found.is_alike


def test_a_model_of_equal_shapes_is_named(published) -> None:
    """46.1 tok/s of a fine-tune stood beside NVIDIA's checkpoint."""
    tuned = "AEON-7/Qwen3.8-27B-Ultimate-Uncensored-NVFP4-Mixed"
    published(figure(tuned, 46.1, model="tuned"))
    found = nearest_figure(proof(model="tuned", level=EvidenceLevel.SIBLING), MINE, "mixed")
    assert found.words == f"published: 46.1 of {tuned}"
    assert nearest_figure(proof(model="tuned", level=EvidenceLevel.FORMAT), MINE, "mixed") is None


def test_other_loads_and_nodes_are_none_of_it(published) -> None:
    published(figure(MINE, 200.0, requests=8), figure(MINE, 90.0, nodes=2))
    assert nearest_figure(proof(), MINE, "mixed") is None
    assert nearest_figure(proof(), MINE, "mixed", requests=9).words == "published: 200 by 8"
    assert nearest_figure(proof(), MINE, "mixed", requests=16) is None


def test_each_source_counts_once(published) -> None:
    published(*(figure(MINE, tps) for tps in (10.0, 20.0, 30.0)), figure(MINE, 40.0, source="c/d"))
    found = nearest_figure(proof(), MINE, "mixed")
    assert (found.tps, found.sources) == (30.0, ("a/b", "c/d"))


def test_a_source_that_is_no_evidence_now_has_no_rate(published) -> None:
    published(figure(MINE, 40.0, source="e/f"))
    assert nearest_figure(proof(), MINE, "mixed") is None


def test_rates_on_two_numbers_of_nodes_are_of_one_source_checkpoint_and_text(published) -> None:
    one, two = proof(1), proof(2)
    published(figure(MINE, 20.0), figure(MINE, 30.0, nodes=2))
    assert pair_of(one, two) == ("a/b", MINE, 20.0, 30.0)
    for other in (
        figure(OTHER, 30.0, nodes=2),
        figure(MINE, 30.0, "code", nodes=2),
        figure(MINE, 30.0, nodes=2, source="c/d"),
        figure(MINE, 30.0, nodes=4),
    ):
        published(figure(MINE, 20.0), other)
        assert pair_of(one, two) is None


def test_the_file_reads_back_and_a_wrong_line_is_named() -> None:
    found = (figure('A "b", c', 10.0), figure(MINE, 12.5, nodes=2))
    assert set(figures.read_figures(figures.written(found))) == set(found)
    with pytest.raises(SpecError, match=rf"knowledge/{FILE}:2: .*\. *"):
        figures.read_figures(figures.written(found).replace(",10.0,", ",-1,"))


def test_every_packaged_rate_is_of_a_combination_that_is_evidence() -> None:
    runs = {
        (one.model, one.engine, one.method, one.format, one.nodes): one
        for one in read_evidence(packaged(EVIDENCE))
    }
    found = figures.read_figures(packaged(FILE))
    assert len(found) > 1000
    for one in found:
        run = runs[one.model, one.engine, one.method, one.format, one.nodes]
        assert one.source.replace(",", " ") in run.sources
        assert run.measured(busy=one.requests > 1)

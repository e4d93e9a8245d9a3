"""The canary: after a start, checks for real tokens, their rate, and sane output.

`/health` proves none of it. Wrong output that looks like text is found by the model's own probabilities: of a known text (a
broken kernel makes it improbable), and of the model's own answer (broken speculation passes tokens that the model would
not have chosen).
"""

from __future__ import annotations

from sparkfleet.engines.base import DraftTokenCounts, Engine
from sparkfleet.engines.harmony import is_harmony
from sparkfleet.engines.token_api import Sampled, TokenApi
from sparkfleet.engines.token_scores import (
    ENOUGH_TOKENS,
    OPENING,
    OWN_TOKENS,
    TEXT,
    Score,
    agreement,
    perplexity,
)
from sparkfleet.group.probe import Probe
from sparkfleet.perf.prediction import Speculation
from sparkfleet.specs.fields import quote
from sparkfleet.values import Value

TEXT_PERPLEXITY = 1000.0
"""Upper limit of the known text's perplexity. Sound models of 0.6 B parameters and more stay below 100; broken weights or
kernels come near the size of the vocabulary (32,000 to 250,000)."""
HARMONY_PERPLEXITY = 20_000.0
"""The same for gpt-oss, which was trained for its own format and finds plain text improbable: 196 on WikiText-2 for a sound
gpt-oss-20b (ggml-org/llama.cpp#15155), and 1,149 to 3,381 for 4 of 90 passages of 256 tokens (from the running means in
#15390). The canary's passage is a sixth as long, and follows nothing; the vocabulary has 201,088 tokens."""
OWN_PERPLEXITY = 50.0
"""Upper limit of the perplexity of a model's own greedy answer. Sound models have 1 to 3; a small model on a text beyond its
training reaches 15."""
OWN_AGREEMENT = 0.6
"""Least share of its own greedy tokens that the model must choose again: below it, something else has chosen them. Sound
engines reach 0.9 and more; rounding in batches of another size explains the rest."""
ACCEPTED_FLOOR = {
    "mtp": 0.1,
    "nextn": 0.1,
    "eagle3": 0.1,
    "draft": 0.1,
    "dflash": 0.04,
    "dflash2": 0.04,
    "dspark": 0.04,
}
"""Least acceptance by method: half of the lowest that was published for a working one (MTP 0.22 of 88 measurements, DSpark
0.086 of 30, DFlash 0.11 of 39; knowledge/measurements). Methods that are not here look up earlier text, and may find
nothing."""
ENOUGH_DRAFTS = 30
"""Fewest draft tokens that allow a conclusion."""


class Sanity(Value):
    """Canary readings: the model's own answers and probabilities. None: the engine does not provide them."""

    method: str = "none"
    """Speculative method."""
    model: str = ""
    """Name of the checkpoint."""
    only: str = ""
    """The only content of its own answer, repeated: a character, or the text of one token; "" if it has several."""
    textless: bool = False
    """True if its own answer is one token again and again that has no text, such as padding: that is what some models' id 0
    means (vllm-project/vllm#18733)."""
    text_perplexity: float | None = None
    own_perplexity: float | None = None
    own_agreement: float | None = None
    """Share of its own greedy tokens, by id, to which the model gives the highest probability again."""
    as_generated: bool = False
    """True if the probabilities of its own tokens come from the generation itself and not from a prompt: a fault of the
    generation may distort them, too."""
    accepted_share: float | None = None
    """Accepted draft tokens divided by proposed ones; None without speculation or with too few draft tokens."""

    def complaint(self) -> str:
        """Fault of the output, in words; "" if there is none."""
        if self.only or self.textless:
            repeated = quote(self.only) if self.only else "one token that has no text"
            return f"the output repeats {repeated} only, which indicates NaN logits"
        limit = HARMONY_PERPLEXITY if is_harmony(self.model) else TEXT_PERPLEXITY
        if self.text_perplexity is not None and self.text_perplexity > limit:
            return f"the perplexity of plain English is {self.text_perplexity:.0f} (limit {limit:.0f})"
        if self.own_perplexity is not None and self.own_perplexity > OWN_PERPLEXITY:
            return (
                f"the perplexity of its own answer is {self.own_perplexity:.1f} (limit {OWN_PERPLEXITY:.0f}): the sampled"
                " tokens do not match the model's own greedy choice"
            )
        if self.own_agreement is not None and self.own_agreement < OWN_AGREEMENT:
            return (
                f"only {self.own_agreement:.0%} of its own tokens are its greedy choice again (at least"
                f" {OWN_AGREEMENT:.0%}): the sampled tokens do not match the model's own greedy choice"
            )
        floor = ACCEPTED_FLOOR.get(self.method, 0.0)
        if self.accepted_share is not None and self.accepted_share < floor:
            return (
                f"it accepts {self.accepted_share:.1%} of the draft tokens (at least {floor:.0%}): speculation costs time"
                " without a gain"
            )
        return ""

    def unchecked(self) -> tuple[str, ...]:
        """Readings that the engine does not provide, in words."""
        missing = {
            "a known text's perplexity": self.text_perplexity is None,
            "its own answer's perplexity": self.own_perplexity is None,
            "its own tokens as a prompt (this engine gives no token ids)": self.as_generated,
            "acceptance": self.accepted_share is None and self.method in ACCEPTED_FLOOR,
        }
        return tuple(words for words, is_missing in missing.items() if is_missing)

    def values(self) -> dict[str, float]:
        """The numbers that are known, by name."""
        return {name: value for name, value in self.model_dump().items() if isinstance(value, float)}


async def drafts_of(probe: Probe, engine: Engine, speculation: Speculation) -> DraftTokenCounts:
    """Draft tokens since the engine started, as it counts them."""
    if speculation.method == "none" or not engine.draft_metrics:
        return DraftTokenCounts()
    return engine.drafts(await probe.gauges(engine.metrics_path, engine.draft_metrics), speculation.tokens)


async def sanity(
    probe: Probe, engine: Engine, speculation: Speculation, before: DraftTokenCounts, model: str = ""
) -> Sanity:
    """Reads the model's own probabilities.

    Args:
        before: draft tokens that are not the canary's.
        model: name of the checkpoint.
    """
    text = (await probe.scores(engine.token_api, TEXT)).scores
    answer = await probe.greedy(engine.token_api, OPENING, OWN_TOKENS)
    own = reread = await _own_scores(probe, engine.token_api, answer)
    if answer.tokens >= ENOUGH_TOKENS and not reread:
        own = await probe.generated(OPENING, OWN_TOKENS)
    drafts = await drafts_of(probe, engine, speculation)
    proposed, accepted = drafts.proposed - before.proposed, drafts.accepted - before.accepted
    share = accepted / proposed if proposed >= ENOUGH_DRAFTS else None
    return Sanity(
        method=speculation.method,
        model=model,
        only=only_text(answer.text, answer.tokens) if answer.tokens >= ENOUGH_TOKENS else "",
        textless=answer.tokens >= ENOUGH_TOKENS and not answer.text and len(set(answer.ids)) <= 1,
        text_perplexity=perplexity(text),
        own_perplexity=perplexity(own),
        own_agreement=agreement(own),
        as_generated=bool(own) and not reread,
        accepted_share=share,
    )


async def _own_scores(probe: Probe, api: TokenApi, answer: Sampled) -> tuple[Score, ...]:
    """Scores of the sampled ids as a prompt, behind the opening's; () if the engine reports no ids, or too few."""
    if len(answer.ids) < ENOUGH_TOKENS:
        return ()
    opening = await probe.scores(api, OPENING)
    if not opening.ids:
        return ()
    whole = await probe.scores(api, (*opening.ids, *answer.ids))
    return whole.scores[len(opening.ids) - 1 :]


def only_text(text: str, tokens: int) -> str:
    """The only content of a text of so many tokens, repeated: its only character apart from white space, or a piece that is
    there once for each token, such as a word or a line break; "" if there is none. The last token may have no text.
    """
    body = "".join(text.split()) or text
    piece = body[: (body + body).find(body, 1)] if body else ""
    if len(piece) == 1 and not piece.isspace():
        return piece
    return piece if piece and len(body) // len(piece) >= max(2, tokens - 1) else ""

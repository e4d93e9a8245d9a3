"""Predictor of a candidate's memory and speed, each computed once per relevant combination. Pure.

Translates a checkpoint, a split and `EngineSettings` into the configurations of the memory model (`MemoryConfig`) and of the
speed model (`SpeedConfig`), which share the fields of `EngineConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.knowledge.engines.images import RequantizedBits
from sparkfleet.knowledge.models.speculators import bundles
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.draft_methods import as_counted, at_depth, deepest, speed_method
from sparkfleet.perf.drafter import Drafter, drafter_by_name, pass_bytes
from sparkfleet.perf.engine_config import EngineConfig
from sparkfleet.perf.engine_settings import EngineSettings
from sparkfleet.perf.latency.latency_model import LatencyModel, model_of
from sparkfleet.perf.latency.local_acceptance import LocalAcceptance
from sparkfleet.perf.latency.rates import Rates, rates
from sparkfleet.perf.latency.step_costs import SpeedConfig
from sparkfleet.perf.local_measurements import LocalMeasurement, Point, anchored, text_of
from sparkfleet.perf.memory.demand import bundled_draft_bytes, demand, step_tokens
from sparkfleet.perf.memory.engine_sizes import MemoryConfig
from sparkfleet.perf.memory.kv_cache import whole_block
from sparkfleet.perf.model_shape import ModelShape, from_checkpoint
from sparkfleet.perf.prediction import Band, DepthPrediction, MemoryPart, Speculation, Split
from sparkfleet.perf.weight_formats import format_of, kv_element_bytes
from sparkfleet.perf.workload import CHECK, PROMPT, Content, Workload, usual

REMEMBERED = 20_000
"""Answers that a predictor keeps; a plan for 64 nodes asks for a few hundred."""


class Predictor:
    """Memory and speed of one checkpoint, remembered by what they depend on.

    Args:
        checkpoint: the facts of the weights.
        measurements: what the user has measured with them; the planner's numbers follow it.
        drafts: the facts of checkpoints that make drafts, by the names that deployments give them.
        content: the text that speeds are predicted for.
        acceptances: of drafts with these weights, as counted on the requests of the deployment that is planned.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        measurements: tuple[LocalMeasurement, ...] = (),
        drafts: tuple[tuple[str, Checkpoint], ...] = (),
        content: Content = "mixed",
        acceptances: tuple[LocalAcceptance, ...] = (),
    ) -> None:
        self.content: Content = content
        self.checkpoint = checkpoint
        self._drafts = dict(drafts)
        self.measurements = measurements
        self.acceptances = acceptances
        self.shape: ModelShape = from_checkpoint(checkpoint)
        self._shapes: dict[RequantizedBits, ModelShape] = {}
        self.format = format_of(checkpoint)
        self._rates: dict[tuple[object, ...], Rates] = {}
        self._memory: dict[tuple[object, ...], tuple[Band, tuple[MemoryPart, ...]]] = {}
        self._depths: dict[tuple[object, ...], DepthPrediction | None] = {}

    def _shape(self, settings: EngineSettings) -> ModelShape:
        """The shapes as the build of these settings stores them."""
        if settings.requantized not in self._shapes:
            self._shapes[settings.requantized] = self.shape.requantized(dict(settings.requantized))
        return self._shapes[settings.requantized]

    def _forget(self) -> None:
        if len(self._rates) + len(self._memory) > REMEMBERED:
            self._rates.clear()
            self._memory.clear()

    def rates(self, split: Split, settings: EngineSettings, context: int, concurrency: int) -> Rates:
        """Speed with `concurrency` requests at once, each of a usual length or as long as `context` allows."""
        key = (split.speed_key, settings, min(context, 2 * PROMPT), concurrency)
        found = self._rates.get(key)
        if found is None:
            self._forget()
            found = self._rates[key] = self._corrected(
                split, settings, usual(context, concurrency, self.content)
            )
        return found

    def check(self, split: Split, settings: EngineSettings) -> Rates:
        """Speed of the short request that a group is measured with right after its start."""
        key = (split.speed_key, settings, CHECK)
        if key not in self._rates:
            self._forget()
            self._rates[key] = self._corrected(split, settings, CHECK)
        return self._rates[key]

    def long_prompt(self, split: Split, settings: EngineSettings, tokens: int) -> Rates:
        """Speed of one request alone whose prompt has so many tokens, none of them cached."""
        key = (split.speed_key, settings, "long prompt", tokens)
        if key not in self._rates:
            self._forget()
            alone = usual(2 * tokens, 1, self.content).model_copy(update={"prompt": tokens})
            self._rates[key] = self._corrected(split, settings, alone)
        return self._rates[key]

    def _corrected(self, split: Split, settings: EngineSettings, workload: Workload) -> Rates:
        """The prediction for a workload, corrected by what was measured of the same setup.

        A depth by load is one setup: what was measured of one request corrects it under load, too. Acceptance that was
        counted on a deployment's requests is not that of the check's own text.
        """
        speculation = settings.speculation
        now = speculation.at(workload.concurrency)
        setup = self._speed_config(split, settings._replace(speculation=now))
        own = [
            one.point
            for one in self.measurements
            if one.model_copy(
                update={
                    "method": speed_method(one.method),
                    "k": now.tokens if one.k == speculation.tokens else one.k,
                }
            ).of(setup)
        ]
        published = model_of(setup, factors())
        local = None if workload == CHECK else self.acceptance(now)
        if local is not None and not own:
            own = [*self._of_other_depths(split, settings._replace(speculation=now), published)]
        return anchored(replace(published, local=local), workload, own, published)

    def _of_other_depths(self, split: Split, settings: EngineSettings, here: LatencyModel) -> Iterator[Point]:
        """Measurements of the same draft with other depths, as they would be with this one: what this fleet's nodes are
        faster or slower by is no reason for another depth."""
        for one in self.measurements:
            there = at_depth(settings.speculation, one.k)
            alike = one.model_copy(update={"method": speed_method(one.method), "k": here.setup.k})
            if one.k and one.point.decode_tps_per_request is not None and alike.of(here.setup):
                model = self._model(split, settings._replace(speculation=there))
                of_here, of_there = (
                    rates(each, one.point.workload).decode_tps_per_request.mid for each in (here, model)
                )
                tps = one.point.decode_tps_per_request / text_of(one.point, model) * of_here / of_there
                yield one.point.model_copy(
                    update={"decode_tps_per_request": tps, "decode_tps_aggregate": None, "accepted": None}
                )

    def acceptance(self, speculation: Speculation) -> LocalAcceptance | None:
        """Finds the counted acceptance of a draft with the nearest depth, the deeper of two; None if none was counted."""
        found = [one for one in self.acceptances if one.of(as_counted(speculation))]
        return min(
            found,
            key=lambda one: (abs(one.tokens - speculation.tokens), -one.tokens, -one.steps),
            default=None,
        )

    def depths(
        self, split: Split, settings: EngineSettings, context: int, concurrency: int
    ) -> DepthPrediction | None:
        """Decode steps with each depth of a draft, up to some beyond the planned one, and without drafts."""
        wanted = settings.speculation
        if wanted.method in ("none", "ngram"):
            return None
        key = (split.speed_key, settings, min(context, 2 * PROMPT), concurrency)
        if key not in self._depths:
            length = usual(context, 1, self.content).context
            models = [
                self._model(split, settings._replace(speculation=at_depth(wanted, k)))
                for k in range(deepest(wanted) + 1)
            ]
            now = self._model(split, settings._replace(speculation=wanted.at(1)))
            loaded = self.model(split, settings._replace(speculation=wanted.at(concurrency)))
            self._depths[key] = DepthPrediction(
                published=now.yielded(usual(context, 1, self.content)),
                steps_alone=tuple(round(1 / one.step_s(1, length), 3) for one in models),
                steps_loaded=tuple(round(1 / one.step_s(concurrency, length), 3) for one in models),
                accepted_loaded=loaded.yielded(usual(context, concurrency, self.content)),
            )
        return self._depths[key]

    def _model(self, split: Split, settings: EngineSettings) -> LatencyModel:
        return model_of(self._speed_config(split, settings), factors())

    def model(self, split: Split, settings: EngineSettings) -> LatencyModel:
        """The speed model of a setup before local measurements correct it, to explain what a prediction is made of."""
        return replace(self._model(split, settings), local=self.acceptance(settings.speculation))

    def config(self, split: Split, settings: EngineSettings) -> EngineConfig:
        """The engine configuration that both models begin with."""
        return EngineConfig(
            engine=settings.engine,
            tp=split.tp,
            pp=split.pp,
            ep=split.ep,
            dcp=split.dcp,
            kv_bytes=kv_element_bytes(self.checkpoint.kv_dtype(settings.kv_dtype)),
            eager=settings.eager,
            method=settings.speculation.method,
            k=settings.speculation.tokens,
            chunk=settings.batch_tokens,
            disk_tables=settings.disk_tables,
        )

    def _speed_config(self, split: Split, settings: EngineSettings) -> SpeedConfig:
        config = self.config(split, settings)
        # The same bytes per step whether experts are split or distributed, so speed takes no `ep` (see `rates`).
        speed = {"ep": 1, "method": speed_method(config.method)}
        return SpeedConfig(
            shape=self._shape(settings),
            format=self.format,
            link=settings.link,
            kernel="marlin" if settings.marlin else "",
            release=settings.release,
            draft_bytes=pass_bytes(settings.speculation),
            **(config.shared() | speed),
        )

    def memory(
        self, split: Split, settings: EngineSettings, context: int, concurrency: int
    ) -> tuple[Band, tuple[MemoryPart, ...]]:
        """Bytes per rank, with what they are made of: KV for `concurrency` requests of `context` tokens each."""
        what = (
            settings.engine,
            settings.speculation,
            settings.eager,
            settings.kv_dtype,
            settings.batch_tokens,
            settings.disk_tables,
            settings.kv_disk,
            settings.requantized,
        )
        key = (split, what, context, concurrency)
        found = self._memory.get(key)
        if found is None:
            needs = demand(self._shape(settings), self.memory_config(split, settings, context, concurrency))
            parts = sorted((item for item in needs.items if item.mid > 0), key=lambda item: -item.mid)
            named = tuple(MemoryPart(name=item.name, bytes=item.mid) for item in parts)
            found = self._memory[key] = (needs.band, named)
        return found

    def memory_config(
        self, split: Split, settings: EngineSettings, context: int, concurrency: int
    ) -> MemoryConfig:
        """The configuration with its requests, for the memory model."""
        drafter = self.drafter(settings.speculation)
        return MemoryConfig(
            context=context,
            concurrency=concurrency,
            draft=drafter.shape,
            draft_size=drafter.size,
            kv_disk=settings.kv_disk,
            **self.config(split, settings).shared(),
        )

    def step(self, split: Split, settings: EngineSettings, context: int, concurrency: int) -> int:
        """Tokens of the largest prefill step."""
        return step_tokens(self.shape, self.memory_config(split, settings, context, concurrency))

    def whole_block(self, split: Split, settings: EngineSettings) -> int:
        """Tokens that a prefill step has to have room for at least, 0 if there is no such thing."""
        return whole_block(self.shape, self.memory_config(split, settings, context=1, concurrency=1))

    def drafter(self, speculation: Speculation) -> Drafter:
        """The checkpoint that makes the drafts, if there is a separate one."""
        if speculation.draft is None:
            return self._bundled if speculation.method == "dspark" else Drafter()
        facts = self._drafts.get(speculation.draft)
        if facts is not None:
            return Drafter(from_checkpoint(facts))
        return drafter_by_name(speculation.method, speculation.draft)

    @cached_property
    def _bundled(self) -> Drafter:
        """DSpark inside the checkpoint; nothing of its own is known if neither config nor publications have it there."""
        if self.checkpoint.dspark_block is None and not bundles(self.checkpoint.id, "dspark"):
            return Drafter()
        return Drafter(size=bundled_draft_bytes(self.shape, known=self.checkpoint.weights_known))

    @property
    def drafts(self) -> Mapping[str, Checkpoint]:
        """The facts of the drafters that deployments name and that were read, by name."""
        return self._drafts


@lru_cache(maxsize=64)
def predictor_of(
    checkpoint: Checkpoint,
    measurements: tuple[LocalMeasurement, ...] = (),
    drafts: tuple[tuple[str, Checkpoint], ...] = (),
    content: Content = "mixed",
    acceptances: tuple[LocalAcceptance, ...] = (),
) -> Predictor:
    """The predictor of a checkpoint. A pure function of its arguments, so remembered from one plan to the next."""
    return Predictor(checkpoint, measurements, drafts, content, acceptances)

"""llama.cpp: `llama-server` with one GGUF checkpoint on one node. Flags are those of b11434 (common/arg.cpp); builds since
August 2026 have them (b10360 the two newest, `--load-mode` and `--cors-origins`).

It has an API key, which it reads from the environment, but answers `/health`, `/v1/health`, `/` and OPTIONS without it, and
it has no key for its metrics page alone. A forwarder of ours is therefore in front of it even on loopback: every path
requires the token, and the metrics token opens the metrics page. Reasons for its flags are in docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from sparkfleet.engines.base import (
    DraftTokenCounts,
    PositionCounter,
    RankCommand,
    RankContext,
    cache_mounts,
    checkpoint_mounts,
    with_users,
)
from sparkfleet.engines.kernel_caches import driver_cache_env
from sparkfleet.engines.nccl_env import Pairs, merged
from sparkfleet.engines.speculation import own_method
from sparkfleet.engines.token_api import PrefixCompletions, TokenApi
from sparkfleet.errors import Cause, EngineError
from sparkfleet.knowledge.engines.llama_cpp_settings import CONTEXT_CHECKPOINTS
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.specs.fields import quote

IN_IMAGE = "/app/llama-server"
"""The program in the official images (.devops/cuda.Dockerfile)."""
PROGRAM = "llama-server"
"""The program of an environment, beside its interpreter."""
ALL_LAYERS = "999"
"""More layers than any model has: all of them on the GPU. Releases before `all` was a value take the number, too."""
BATCH = 2048
"""Tokens of one prefill step on a GPU if the plan sets none: the size of llama.cpp's own runs on a Spark
(benches/dgx-spark), and of most published ones. Its default micro-batch is 512."""
LOOKED_UP = 4
"""Tokens at the end of the text that are looked up further up in it (NGRAM). With the engine's 12 few are found."""
MOST_SLOTS = 256
"""Most sequences of one llama.cpp context (LLAMA_MAX_SEQ)."""


class LlamaCpp:
    """llama.cpp's OpenAI and Anthropic server, one process with one model."""

    name = "llama.cpp"
    health_path = "/health"
    metrics_path = "/metrics"
    running_metric = "llamacpp:requests_processing"
    waiting_metric = "llamacpp:requests_deferred"
    # Both counters of tokens, and those of draft tokens, are updated when a request is finished.
    tokens_metric = "llamacpp:tokens_predicted_total"
    step_metrics: tuple[str, ...] = ("llamacpp:n_decode_total",)
    draft_metrics: tuple[str, ...] = (
        "llamacpp:spec_decode_num_draft_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "llamacpp:spec_decode_num_drafts_total",
    )
    draft_positions: PositionCounter | None = PositionCounter(
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", "position"
    )
    token_api: TokenApi = PrefixCompletions()
    checks_token = False
    always_forwarded = True

    def drafts(self, sums: Mapping[str, float], tokens: int) -> DraftTokenCounts:
        """Draft tokens as the engine counts them."""
        return DraftTokenCounts(*(sums.get(name, 0.0) for name in self.draft_metrics))

    def launch(self, candidate: Candidate, context: RankContext) -> RankCommand:
        """The server on one address, with its key in the environment."""
        _refuse(candidate)
        return RankCommand(
            argv=(
                _program(candidate, context),
                *with_users(_flags(candidate, context), candidate.engine_args),
            ),
            env=merged(_environment(context), candidate.env),
            token_env="LLAMA_API_KEY",  # noqa: S106 (the name of a variable)
            mounts=(*checkpoint_mounts(context), *cache_mounts(context)),
            health_path=self.health_path,
        )


def _refuse(candidate: Candidate) -> None:
    """Raises EngineError for what `llama-server` cannot do."""
    if candidate.gguf is None:
        raise EngineError(
            f"{quote(candidate.model)} has no GGUF file, and llama.cpp reads no other format.",
            do="Name a GGUF checkpoint (docs/gguf.md), or another engine.",
            because=Cause.FLAG,
        )
    if candidate.shape.ranks > 1:
        raise EngineError(
            f"llama.cpp runs on one node here, not on {candidate.shape.ranks}.",
            means="Its RPC between nodes is neither encrypted nor checked by a token.",
            do="Remove `parallel` from the deployment, or use another engine.",
            because=Cause.FLAG,
        )
    if candidate.concurrency > MOST_SLOTS:
        raise EngineError(
            f"llama.cpp serves {MOST_SLOTS} requests at once, not {candidate.concurrency}.",
            do=f"Set `concurrency: {MOST_SLOTS}` or less.",
            because=Cause.FLAG,
        )


def _program(candidate: Candidate, context: RankContext) -> str:
    if candidate.runtime == "container":
        return IN_IMAGE
    return str(PurePosixPath(context.python).with_name(PROGRAM))


def _flags(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    return (
        *_model(candidate, context),
        *("--alias", context.served_name),
        *("--host", context.host, "--port", str(context.port)),
        *_memory(candidate),
        *_device(candidate),
        *_speculation(candidate, context),
        *_server(),
    )


def _model(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    files = candidate.gguf
    assert files is not None, "checked before"
    home = PurePosixPath(context.model_path)
    tower = ("--mmproj", str(home / files.mmproj)) if files.mmproj else ("--no-mmproj",)
    return ("--model", str(home / files.model), *tower)


def _memory(candidate: Candidate) -> tuple[str, ...]:
    """Flags of everything that takes memory: nothing beside what the plan counts.

    Each slot has its own KV cache of `context` tokens, rounded up to 256. A unified cache of the same size would let one
    request use another's share, and every request would attend over the cells of all (ggml-org/llama.cpp#14363).
    """
    slots = candidate.concurrency
    flags = ["--ctx-size", str(candidate.context * slots), "--parallel", str(slots), "--no-kv-unified"]
    if candidate.kv_dtype != "auto":
        flags += ["--cache-type-k", candidate.kv_dtype, "--cache-type-v", candidate.kv_dtype]
    # A full context ends an answer; its beginning is never dropped in silence.
    flags += ["--no-context-shift"]
    # A cache of prompts beside the slots, of 8 GiB by default, would be in the same memory as the GPU's.
    return (*flags, "--cache-ram", "0", "--ctx-checkpoints", str(CONTEXT_CHECKPOINTS))


def _device(candidate: Candidate) -> tuple[str, ...]:
    tokens = candidate.batch_tokens
    flags = ["--fit", "off"]
    if candidate.device == "cpu":
        flags += ["--load-mode", "none", "--device", "none"]
    else:
        # Mapped weights would be in unified memory twice: in the page cache and in the GPU's copy. Read directly, they are
        # there once; a file system without direct I/O is read through the cache.
        flags += ["--load-mode", "dio"]
        # Named, so that it refuses to start without its GPU rather than serve on the CPU.
        flags += ["--device", "CUDA0", "--gpu-layers", ALL_LAYERS]
        tokens = tokens or BATCH
    if tokens is not None:
        flags += ["--batch-size", str(tokens), "--ubatch-size", str(tokens)]
    return tuple(flags)


def _speculation(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    """Flags of the method: the engine's name for it, its depth, and its draft's file, whole on the GPU as the model is.

    A draft's cache is in f16 whatever the model's is: an accepted token is the model's own, so less would save little and
    could only make drafts worse.
    """
    wanted = candidate.speculation
    if wanted.method == "none":
        return ()
    kind = ("--spec-type", own_method(candidate).name)
    if wanted.method == "ngram":
        # Fewer drafts than looked-up tokens are never made (common/ngram-map.cpp).
        length = min(LOOKED_UP, wanted.tokens)
        sizes = ("--spec-ngram-simple-size-n", str(length), "--spec-ngram-simple-size-m", str(wanted.tokens))
        return (*kind, *sizes)
    return (*kind, "--spec-draft-n-max", str(wanted.tokens), *_draft(candidate, context))


def _draft(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    files = candidate.gguf_draft
    if candidate.speculation.draft is None:
        return ()
    if files is None:
        raise EngineError(
            f"the draft {quote(candidate.speculation.draft)} has no GGUF file, and llama.cpp reads no other format.",
            do="Name a draft in GGUF format, or another `speculation` (docs/gguf.md).",
            because=Cause.FLAG,
        )
    layers = () if candidate.device == "cpu" else ("--spec-draft-ngl", ALL_LAYERS)
    return ("--spec-draft-model", str(PurePosixPath(context.draft_path) / files.model), *layers)


def _server() -> tuple[str, ...]:
    return (
        *("--jinja", "--metrics", "--no-slots", "--no-webui", "--offline"),
        # Answers to browsers of other origins are the gateway's business, which the engine is behind.
        *("--cors-origins", "localhost", "--no-cors-credentials"),
        *("--log-colors", "off", "--log-verbosity", "3"),  # from 5 prompts and answers are logged
    )


def _environment(context: RankContext) -> Pairs:
    # Weights are staged before a rank starts; an engine never downloads.
    return (("HF_HUB_OFFLINE", "1"), *driver_cache_env(context))

"""Recording rules: the engines' own series under common names, and what dashboards and alerts share. Pure.

Names of the engines' series are those of vLLM 0.32 (`vllm/v1/metrics/loggers.py`, `vllm/v1/spec_decode/metrics.py`), SGLang
0.5.23 (`sglang/srt/observability/metrics_collector.py`), TensorRT-LLM 1.3 (`tensorrt_llm/metrics/collector.py`) and
llama.cpp b11434 (`tools/server/server-task.cpp`). A series that an engine does not have is left out for it, never made up.
"""

from __future__ import annotations

from sparkfleet.telemetry.rule_values import RecordingRule, RuleGroup

_GROUP = "sum by (deployment, group, node)"
_LLAMACPP = "llama.cpp"
_PROMPTS = (
    f"{_GROUP} (rate(llamacpp:prompt_tokens_total[{{0}}]))"
    f" + {_GROUP} (rate(llamacpp:prompt_tokens_cached_total[{{0}}]))"
)
"""Prompt tokens per second: llama.cpp counts cached ones apart."""


def _of_engines(name: str, meaning: str, **exprs: str) -> list[RecordingRule]:
    return [
        RecordingRule(record=f"sparkfleet:engine_{name}", expr=expr, meaning=meaning, engine=engine)
        for engine, expr in exprs.items()
    ]


def _of_llamacpp(name: str, meaning: str, expr: str) -> list[RecordingRule]:
    return _of_engines(name, meaning, **{_LLAMACPP: expr})


def _rates(name: str, meaning: str, window: str, **series: str) -> list[RecordingRule]:
    exprs = {engine: f"{_GROUP} (rate({one}[{window}]))" for engine, one in series.items()}
    return _of_engines(f"{name}:rate{window}", meaning, **exprs)


def _quantiles(name: str, meaning: str, **series: str) -> list[RecordingRule]:
    found: list[RecordingRule] = []
    for quantile, label in ((0.5, "p50"), (0.95, "p95")):
        exprs = {
            engine: f"histogram_quantile({quantile}, sum by (deployment, group, node, le) (rate({one}_bucket[5m])))"
            for engine, one in series.items()
        }
        found += _of_engines(f"{name}:{label}_5m", f"{meaning} ({label} of 5 minutes).", **exprs)
    return found


def _ratios(name: str, meaning: str, **series: tuple[str, str]) -> list[RecordingRule]:
    exprs = {
        engine: f"{_GROUP} (rate({part}[5m])) / {_GROUP} (rate({whole}[5m]))"
        for engine, (part, whole) in series.items()
    }
    return _of_engines(name, meaning, **exprs)


ENGINES = RuleGroup(
    name="sparkfleet-engines",
    interval="15s",
    rules=(
        *_of_engines(
            "requests_running",
            "Requests that the engine works on.",
            vllm=f"{_GROUP} (vllm:num_requests_running)",
            sglang=f"{_GROUP} (sglang:num_running_reqs)",
            trtllm=f"{_GROUP} (trtllm_num_requests_running)",
            **{_LLAMACPP: f"{_GROUP} (llamacpp:requests_processing)"},
        ),
        *_of_engines(
            "requests_waiting",
            "Requests in the engine's queue.",
            vllm=f"{_GROUP} (vllm:num_requests_waiting)",
            sglang=f"{_GROUP} (sglang:num_queue_reqs)",
            trtllm=f"{_GROUP} (trtllm_num_requests_waiting)",
            **{_LLAMACPP: f"{_GROUP} (llamacpp:requests_deferred)"},
        ),
        *_of_engines(
            "kv_cache_used:ratio",
            "Share of the KV cache in use.",
            vllm="max by (deployment, group, node) (vllm:kv_cache_usage_perc)",
            sglang="max by (deployment, group, node) (sglang:token_usage)",
            trtllm="max by (deployment, group, node) (trtllm_kv_cache_utilization)",
        ),
        # SGLang's other counters of tokens move only when a request is finished.
        *_rates(
            "prompt_tokens",
            "Prompt tokens per second, cached ones included.",
            "1m",
            vllm="vllm:prompt_tokens_total",
            sglang='sglang:realtime_tokens_total{mode=~"prefill_.*"}',
            trtllm="trtllm_prompt_tokens_total",
        ),
        *_of_llamacpp(
            "prompt_tokens:rate1m", "Prompt tokens per second, cached ones included.", _PROMPTS.format("1m")
        ),
        *_rates(
            "generation_tokens",
            "Output tokens per second.",
            "1m",
            vllm="vllm:generation_tokens_total",
            sglang='sglang:realtime_tokens_total{mode="decode"}',
            trtllm="trtllm_generation_tokens_total",
            **{_LLAMACPP: "llamacpp:tokens_predicted_total"},
        ),
        *_rates(
            "requests_finished",
            "Requests finished per second.",
            "1m",
            vllm="vllm:request_success_total",
            sglang="sglang:num_requests_total",
            trtllm="trtllm_request_success_total",
        ),
        *_rates(
            "preemptions",
            "Requests per second that lost their KV cache to others.",
            "5m",
            vllm="vllm:num_preemptions_total",
            sglang="sglang:num_retracted_requests_total",
        ),
        *_ratios(
            "prefix_cache_hits:ratio5m",
            "Share of prompt tokens that were in the prefix cache.",
            vllm=("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
            sglang=("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
            trtllm=("trtllm_prompt_cached_tokens_total", "trtllm_prompt_tokens_total"),
        ),
        *_of_llamacpp(
            "prefix_cache_hits:ratio5m",
            "Share of prompt tokens that were in the prefix cache.",
            f"{_GROUP} (rate(llamacpp:prompt_tokens_cached_total[5m])) / ({_PROMPTS.format('5m')})",
        ),
        *_quantiles(
            "ttft_seconds",
            "TTFT as the engine measures it, its queue included",
            vllm="vllm:time_to_first_token_seconds",
            sglang="sglang:time_to_first_token_seconds",
            trtllm="trtllm_time_to_first_token_seconds",
        ),
        *_quantiles(
            "itl_seconds",
            "ITL as the engine measures it; TensorRT-LLM's is the mean of each request",
            vllm="vllm:inter_token_latency_seconds",
            sglang="sglang:inter_token_latency_seconds",
            trtllm="trtllm_time_per_output_token_seconds",
        ),
        *_of_engines(
            "tokens_per_step",
            "Tokens per step of speculative decoding: accepted draft tokens and the one that the target adds.",
            vllm=f"1 + {_GROUP} (rate(vllm:spec_decode_num_accepted_tokens_total[5m]))"
            f" / ({_GROUP} (rate(vllm:spec_decode_num_drafts_total[5m])) > 0)",
            # 0 before its first step.
            sglang="max by (deployment, group, node) (sglang:spec_accept_length) > 0",
            **{
                _LLAMACPP: f"1 + {_GROUP} (rate(llamacpp:spec_decode_num_accepted_tokens_total[5m]))"
                f" / ({_GROUP} (rate(llamacpp:spec_decode_num_drafts_total[5m])) > 0)"
            },
        ),
        *_of_engines(
            "accepted_by_position:rate5m",
            "Accepted draft tokens per second by their position in the draft.",
            vllm="sum by (deployment, group, node, position)"
            " (rate(vllm:spec_decode_num_accepted_tokens_per_pos_total[5m]))",
            trtllm="sum by (deployment, group, node, position) (label_replace(rate("
            'trtllm_spec_decode_accepted_tokens_total[5m]), "position", "$1", "token_position", "(.*)"))',
            **{
                _LLAMACPP: "sum by (deployment, group, node, position)"
                " (rate(llamacpp:spec_decode_num_accepted_tokens_per_pos_total[5m]))"
            },
        ),
    ),
)
"""The engines' series under common names, with the labels deployment, group, node and engine."""


def _rule(record: str, expr: str, meaning: str) -> RecordingRule:
    return RecordingRule(record=f"sparkfleet:{record}", expr=expr, meaning=meaning)


_ACCEPTED = 'clamp_min(delta(sparkfleet_draft_tokens{kind="accepted"}[10m]), 0)'
_PROPOSED = 'clamp_min(delta(sparkfleet_draft_tokens{kind="proposed"}[10m]), 0)'
_AT = "on (deployment, group)"

FLEET = RuleGroup(
    name="sparkfleet-fleet",
    interval="15s",
    rules=(
        _rule(
            "tokens:rate1m",
            "sum by (model, kind) (rate(sparkfleet_tokens_total[1m]))",
            "Tokens per second of finished answers, by model.",
        ),
        _rule(
            "requests:rate1m",
            "sum by (model) (rate(sparkfleet_requests_total[1m]))",
            "Requests per second, by model.",
        ),
        _rule(
            "failures:ratio5m",
            '(sum by (model) (rate(sparkfleet_requests_total{status=~"5.."}[5m]))'
            " or sum by (model) (rate(sparkfleet_requests_total[5m])) * 0)"
            " / (sum by (model) (rate(sparkfleet_requests_total[5m])) > 0)",
            "Share of requests that ended with a 5xx, by model.",
        ),
        *(
            _rule(
                f"{name}:{label}_5m",
                f"histogram_quantile({quantile}, sum by (model, le) (rate(sparkfleet_{name}_bucket[5m])))",
                f"{name.partition('_')[0].upper()} at the gateway ({label} of 5 minutes).",
            )
            for name in ("ttft_seconds", "itl_seconds", "request_seconds")
            for quantile, label in ((0.5, "p50"), (0.95, "p95"))
        ),
        _rule(
            "acceptance:ratio10m",
            f"sum by (deployment, group) ({_ACCEPTED}) / (sum by (deployment, group) ({_PROPOSED}) > 0)",
            "Share of draft tokens that were accepted, of ten minutes in which there were any.",
        ),
        _rule(
            "check_decode:ratio",
            f"sparkfleet_measured_decode_tokens_per_second / {_AT}"
            ' sparkfleet_predicted_check_decode_tokens_per_second{bound="mid"}',
            "Measured over predicted output of the request that measures a group after its start.",
        ),
        _rule(
            "check_ttft:ratio",
            f'sparkfleet_measured_ttft_seconds / {_AT} sparkfleet_predicted_check_ttft_seconds{{bound="mid"}}',
            "Measured over predicted TTFT of that request.",
        ),
        _rule(
            "node_memory_used:ratio",
            "1 - sparkfleet_node_memory_available_bytes / sparkfleet_node_memory_total_bytes",
            "Share of a node's unified memory in use.",
        ),
        _rule(
            "rail_bytes:rate1m",
            "sum by (node, netdev, direction) (rate(sparkfleet_rail_bytes_total[1m]))",
            "Bytes per second of a rail through the network stack.",
        ),
        _rule(
            "rail_rdma_bytes:rate1m",
            "sum by (node, rdma, direction) (rate(sparkfleet_rail_rdma_bytes_total[1m]))",
            "Bytes per second of RDMA on a rail.",
        ),
        _rule("gpu_power_watts", "sum(sparkfleet_node_gpu_power_watts)", "Power of all GPUs."),
        _rule(
            "output_tokens_per_watt_hour",
            'sum(rate(sparkfleet_tokens_total{kind="output"}[5m])) * 3600 / sum(sparkfleet_node_gpu_power_watts)',
            "Output tokens per watt-hour of the GPUs.",
        ),
    ),
)
"""Series of ours that dashboards and alerts share."""

RECORDING: tuple[RuleGroup, ...] = (ENGINES, FLEET)

"""Flags and variables that sparkfleet sets and a deployment may not: copied launch scripts contain them.

Such a flag would show after a quarter of an hour: the engine listens on a wrong address, or on every address, or
waits for ranks that meet elsewhere.

A flag that begins as one of ours is refused like it. vLLM (`FlexibleArgumentParser`) and SGLang (`argparse`) leave
`allow_abbrev` on: `--served-model` is `--served-model-name` to them, and `-n2` is `-n 2`. They stop at a beginning that
several flags share, TensorRT-LLM (`click`) at any. No other flag of vLLM 0.19.0 and 0.32.0, SGLang 0.5.12 and 0.5.23
is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class ReservedFlag(NamedTuple):
    """Reason why arguments cannot be taken, and the replacement."""

    reason: str
    remedy: str


_ADDRESS = (
    "an engine listens on one address of its node, behind the gateway",
    "leave {} out; clients connect to `gateway` of the inventory",
)
_NAME = (
    "the model and its public name are fields of the deployment",
    "leave {} out; set `name` and `model` (`ORG/NAME@REVISION` for a revision)",
)
_SECRET = (
    "the engine answers the gateway alone, with a token of its own that no list of processes shows",
    "leave {} out; `sparkfleet keys` makes keys for clients",
)
_GUARD = (
    "the engine answers the gateway alone: a guard in its own process checks the token of every request",
    "leave {} out",
)
_MEDIA = (
    "an engine that fetches any URL or file reaches for its clients what they must not reach",
    "leave {} out; `media_domains` lists the hosts from which images, video and sound may come",
)
_TLS = (
    "the gateway connects to engines without TLS, over the fleet's own links",
    "leave {} out, and terminate TLS in front of the gateway",
)
_RANKS = (
    "sparkfleet connects the ranks of a group, over the rails of their link",
    "leave {} out; `parallel` sets the number of ranks",
)
_EACH_RANK = (
    "each rank uses the rails of its own link, whose names and addresses differ from node to node",
    "leave {} out",
)
_REPLICAS = ("a Spark has one GPU, so an engine cannot serve several copies of a model", "set `replicas`")
_FIGURES = (
    "sparkfleet detects hangs by the engine's metrics: without them a busy engine looks hung",
    "leave {} out",
)

_SIZES = (
    "the plan sizes the engine's KV cache by the deployment's fields",
    "leave {} out; set `context` (of one request) and `concurrency`",
)
_SPECULATION = (
    "speculation is a field of the deployment",
    "leave {} out; set `speculation: {{method: mtp, tokens: …}}`",
)
_TOOLS = (
    "a server that runs tools or other programs for its clients gives them the machine",
    "leave {} out",
)

OURS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("--host", "--port", "--uds"), _ADDRESS),
    **dict.fromkeys(("--served-model-name", "--model", "--model-path", "--revision"), _NAME),
    **dict.fromkeys(("--api-key", "--admin-api-key"), _SECRET),
    **dict.fromkeys(("--middleware", "--grpc", "--enable-http2"), _GUARD),
    **dict.fromkeys(("--allowed-media-domains", "--allowed-local-media-path"), _MEDIA),
    **dict.fromkeys(("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"), _TLS),
    **dict.fromkeys(
        (
            *("--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--headless"),
            *("--distributed-executor-backend", "--dist-init-addr", "--nccl-init-addr", "--nccl-port"),
        ),
        _RANKS,
    ),
    **dict.fromkeys(("--data-parallel-size", "-dp", "--dp-size", "--dp"), _REPLICAS),
    "--disable-log-stats": _FIGURES,
}
"""Reason of each refusal, and the field to use instead."""

LLAMA_CPP: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("--host", "--port", "--reuse-port", "--api-prefix"), _ADDRESS),
    **dict.fromkeys(
        (
            *("--model", "-m", "--model-url", "-mu", "--docker-repo", "-dr", "--alias", "-a"),
            *("--hf-repo", "-hf", "-hfr", "--hf-file", "-hff", "--mmproj", "-mm", "--mmproj-url", "-mmu"),
            *("--models-dir", "--models-preset", "--models-max", "--tags"),
        ),
        _NAME,
    ),
    **dict.fromkeys(("--api-key", "--api-key-file", "--hf-token", "-hft"), _SECRET),
    **dict.fromkeys(("--ssl-key-file", "--ssl-cert-file"), _TLS),
    **dict.fromkeys(("--media-path",), _MEDIA),
    **dict.fromkeys(
        ("--tools", "--agent", "--mcp-config", "--mcp-servers-config", "--slot-save-path"), _TOOLS
    ),
    **dict.fromkeys(("--ctx-size", "-c", "--parallel", "-np", "--fit", "-fit"), _SIZES),
    **dict.fromkeys(("--kv-unified", "-kvu", "--no-kv-unified", "-no-kvu"), _SIZES),
    **dict.fromkeys(("--rpc", "--tensor-split", "-ts", "--split-mode", "-sm"), _RANKS),
    **dict.fromkeys(
        ("--spec-type", "--spec-draft-n-max", "--spec-draft-model", "-md", "--spec-draft-hf", "-hfd"),
        _SPECULATION,
    ),
}
"""The same of llama.cpp, whose parser takes flags as they are written: none is the beginning of another (common/arg.cpp)."""

VARIABLES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE"), _SECRET),
    **dict.fromkeys(("LLAMA_ARG_HOST", "LLAMA_ARG_PORT"), _ADDRESS),
    **dict.fromkeys(("LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_N_PARALLEL"), _SIZES),
    **dict.fromkeys(("VLLM_API_KEY", "SPARKFLEET_ENGINE_TOKEN", "SPARKFLEET_METRICS_TOKEN"), _SECRET),
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": _MEDIA,
    **dict.fromkeys(("VLLM_HOST_IP", "SGLANG_HOST_IP", "HOST_IP", "MASTER_ADDR", "MASTER_PORT"), _EACH_RANK),
    **dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), _EACH_RANK),
    **dict.fromkeys(("NCCL_IB_HCA", "UCX_NET_DEVICES"), _EACH_RANK),
}
"""The same of environment variables. What is alike on every rank (NCCL_DEBUG, NCCL_IB_DISABLE) is a deployment's to set."""


def given(
    flags: Mapping[str, str], env: Mapping[str, str], *, llama_cpp: bool = False
) -> Iterator[ReservedFlag]:
    """Arguments that a deployment sets and sparkfleet manages, without their values; flags for a single copy are ignored.

    Args:
        flags: values by flag.
        env: the deployment's variables.
        llama_cpp: the arguments are llama.cpp's, some of whose short flags are beginnings of others' (`-ngl`, `-np`).
    """
    for name in env:
        if name in VARIABLES:
            reason, remedy = VARIABLES[name]
            yield ReservedFlag(
                f"{name} is managed by sparkfleet and cannot be set in a deployment: {reason}",
                remedy.format(name),
            )
    if llama_cpp:
        yield from (
            ReservedFlag(
                f"{flag} is managed by sparkfleet and cannot be set in a deployment: {LLAMA_CPP[flag][0]}",
                LLAMA_CPP[flag][1].format(flag),
            )
            for flag in flags
            if flag in LLAMA_CPP
        )
        return
    for flag, value in flags.items():
        whole = _meant(flag)
        if whole is None or (flag == whole and value == "1" and OURS[flag] is _REPLICAS):
            continue
        reason, remedy = OURS[whole]
        if flag == whole:
            yield ReservedFlag(
                f"{flag} is managed by sparkfleet and cannot be set in a deployment: {reason}",
                remedy.format(flag),
            )
        else:
            yield ReservedFlag(
                f"{flag} may be read as {whole}, which is managed by sparkfleet: {reason}",
                f"{remedy.format(flag)}; if another flag is meant, write it in full",
            )


def _meant(flag: str) -> str | None:
    """The one of ours that an engine may take `flag` for; None if it is another."""
    if flag in OURS:
        return flag
    if flag.startswith("--"):
        return next((whole for whole in OURS if whole.startswith(flag)), None)
    return flag[:2] if flag[:2] in OURS else None

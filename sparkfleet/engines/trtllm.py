"""TensorRT-LLM: `trtllm-serve` with its options file, on one node or, by MPI, on several. Checked for 1.3.0rc12.

A group of several ranks follows NVIDIA's playbook for two Sparks, with a supervisor instead of a person: every rank is a
container in the foreground. Ranks above 0 run only an sshd on the rail's address that accepts the group's own key. Rank 0
runs `mpirun`, which starts `rank.sh` on every node over that sshd, itself included. A login over SSH has none of the
container's variables, so each container first writes its own to a file, which `rank.sh` reads: all ranks get the same
arguments and each its own netdevs, whereas `mpirun -x` would give all of them the leader's. When rank 0 ends, MPI ends the
others' engines; when another rank's container ends, MPI ends rank 0's. In both cases the group has ended, and its
supervisor stops the remaining ranks.

`trtllm-llmapi-launch` runs the server of rank 0 in the background and waits for MPI's workers, for ever if the server has
failed: it therefore runs `serve.sh`, which then ends the rank. In the playbook a person starts `mpirun` when both
containers are up, on port 2233. Here `ssh` retries until the sshd answers, and every start has its own port, so that two
groups may share a node. By default Open MPI binds each of two ranks to one core (TensorRT-LLM:
deployment-guide/configuring-cpu-affinity.md). Its messages take the rail; its sockets listen on every address all the
same, and only a firewall closes them.

The key pair is the group's own (`RankContext.keys_dir`): it is the only accepted key and the host key of every sshd, so
that no key has to be trusted at first sight and no user's keys are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from pathlib import PurePosixPath

import yaml

from sparkfleet.engines.base import (
    FILES_IN_CONTAINER,
    DraftTokenCounts,
    LaunchFile,
    Mount,
    PositionCounter,
    RankCommand,
    RankContext,
    cache_mounts,
    checkpoint_mounts,
    files_at,
    with_users,
)
from sparkfleet.engines.harmony import encodings_env, encodings_mounts
from sparkfleet.engines.kernel_caches import cache_env, trtllm_cache_env
from sparkfleet.engines.nccl_env import Pairs, fabric_env, merged
from sparkfleet.engines.speculation import depth_ranges, own_method
from sparkfleet.engines.token_api import TextCompletions, TokenApi
from sparkfleet.errors import EngineError
from sparkfleet.planner.types.plan import Candidate

KEYS_IN_CONTAINER = "/run/sparkfleet-keys"
OPTIONS = "options.yaml"
KV_SHARE = 0.9
"""Share of the memory that is free after loading (NVIDIA's playbook). The plan sets `max_tokens`; the smaller one counts."""
KV_BLOCK = 32
"""Tokens of one block of the KV cache (TensorRT-LLM's default)."""
UNOVERLAPPED = ("draft", "ngram")
"""Methods whose draft model cannot overlap with its target (features/speculative-decoding.md)."""


class Trtllm:
    """TensorRT-LLM's OpenAI server. It checks no token: bind it to an address that only the gateway reaches."""

    name = "trtllm"
    health_path = "/health"
    metrics_path = "/prometheus/metrics"
    running_metric = "trtllm_num_requests_running"
    waiting_metric = "trtllm_num_requests_waiting"
    tokens_metric = "trtllm_generation_tokens_total"
    # Even the metrics of iterations are updated when a request is finished: that wakes their collector
    # (serve/openai_server.py).
    step_metrics: tuple[str, ...] = ()
    draft_metrics: tuple[str, ...] = (
        "trtllm_spec_decode_num_draft_tokens_total",
        "trtllm_spec_decode_num_accepted_tokens_total",
    )
    draft_positions: PositionCounter | None = None
    token_api: TokenApi = TextCompletions()
    checks_token = False
    always_forwarded = False

    def drafts(self, sums: Mapping[str, float], tokens: int) -> DraftTokenCounts:
        """Draft tokens as the engine counts them. Its steps are not counted, and have a depth by load."""
        return DraftTokenCounts(*(sums.get(name, 0.0) for name in self.draft_metrics))

    def launch(self, candidate: Candidate, context: RankContext) -> RankCommand:
        """`trtllm-serve` for one rank; for several, the leader's `mpirun` or a worker's sshd."""
        several = candidate.shape.ranks > 1
        if several and candidate.runtime != "container":
            raise EngineError(
                "TensorRT-LLM runs over several nodes in containers only.",
                means="MPI starts its ranks over an sshd in each container.",
                do="Remove `runtime: process` from the deployment.",
            )
        return RankCommand(
            argv=_argv(candidate, context) if several else _serve(candidate, context),
            env=merged(_environment(candidate, context), candidate.env),
            token_env="",
            files=_files(candidate, context),
            mounts=_mounts(candidate, context),
            health_path="" if context.rank else self.health_path,
        )


# --- the server -------------------------------------------------------------------------------------------------------


def _serve(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    """Identical on all ranks."""
    shape = candidate.shape
    flags = ["--backend", "pytorch", "--tp_size", str(shape.tp)]
    flags += ["--pp_size", str(shape.pp)] if shape.pp > 1 else []
    flags += ["--ep_size", str(shape.ep)] if shape.ep > 1 else []
    flags += ["--max_batch_size", str(candidate.concurrency), "--max_seq_len", str(candidate.context)]
    if candidate.batch_tokens is not None:
        flags += ["--max_num_tokens", str(candidate.batch_tokens)]
    flags += ["--trust_remote_code"] if candidate.trust_remote_code else []
    flags += ["--extra_llm_api_options", f"{files_at(candidate, context)}/{OPTIONS}"]
    flags += ["--host", context.host, "--port", str(context.port)]
    return (
        _program(candidate, context),
        context.model_path,
        *with_users(tuple(flags), candidate.engine_args),
    )


def _program(candidate: Candidate, context: RankContext) -> str:
    """Path of `trtllm-serve`: beside the environment's interpreter, or on a container's PATH."""
    if candidate.runtime == "container":
        return "trtllm-serve"
    return str(PurePosixPath(context.python).with_name("trtllm-serve"))


def options(candidate: Candidate, context: RankContext) -> dict[str, object]:
    """The options file: settings for which `trtllm-serve` has no flag."""
    speculates = candidate.speculation.method != "none"
    found: dict[str, object] = {
        "return_perf_metrics": True,  # without both, /prometheus/metrics is empty
        "enable_iter_perf_stats": True,
        "cuda_graph_config": {"max_batch_size": candidate.concurrency},
        "kv_cache_config": _kv_cache(candidate),
    }
    if speculates:
        found["disable_overlap_scheduler"] = candidate.speculation.method in UNOVERLAPPED
        found["speculative_config"] = _speculation(candidate, context)
    if candidate.speculation.method == "eagle3":
        found |= {"enable_attention_dp": False, "enable_autotuner": False, "enable_chunked_prefill": False}
    return found


def _kv_cache(candidate: Candidate) -> dict[str, object]:
    found: dict[str, object] = {
        "free_gpu_memory_fraction": KV_SHARE,
        "max_tokens": _kv_tokens(candidate),
    }
    if candidate.kv_dtype != "auto":
        found["dtype"] = candidate.kv_dtype
    if candidate.speculation.method != "none":
        found["enable_block_reuse"] = False
    return found


def _kv_tokens(candidate: Candidate) -> int:
    """Tokens of the KV cache for every request at its longest, with its draft tokens, in whole blocks."""
    blocks = -(-(candidate.context + candidate.speculation.tokens) // KV_BLOCK)
    return blocks * KV_BLOCK * candidate.concurrency


def _speculation(candidate: Candidate, context: RankContext) -> dict[str, object]:
    wanted = candidate.speculation
    found: dict[str, object] = {"decoding_type": own_method(candidate).name}
    # Keys are the largest batch of each depth; beyond the last nothing is drafted.
    if ranges := depth_ranges(candidate):
        found["draft_len_schedule"] = {one.last: one.tokens for one in ranges}
    if wanted.method == "mtp":
        return {**found, "num_nextn_predict_layers": wanted.tokens}
    found["max_draft_len"] = wanted.tokens
    if wanted.draft is not None:
        found["speculative_model_dir"] = context.draft_path or wanted.draft
    elif wanted.method == "dspark":
        # Its weights are in the target, and are named all the same (pull request 15808).
        found["speculative_model_dir"] = context.model_path
    return found


# --- several ranks ----------------------------------------------------------------------------------------------------


def _argv(candidate: Candidate, context: RankContext) -> tuple[str, ...]:
    port = str(context.leader_port)
    if context.rank:
        return ("bash", f"{FILES_IN_CONTAINER}/worker.sh", port)
    return ("bash", f"{FILES_IN_CONTAINER}/leader.sh", port, *_serve(candidate, context))


_KEEP = "/run/sparkfleet-ssh"
"""Directory inside a container that only its root can read."""
_ATTEMPTS = 600
"""Connection attempts, one a second, to an sshd that does not listen yet: its node may have to load the image first."""
_NEEDS = (
    "TensorRT-LLM over several nodes needs openssh in its image, and nothing is installed at its start. Build an image with"
    " openssh-server and openssh-client on top of this one, and name it in the deployment (image)."
)

_KEY = f"""\
install -d -m 700 {_KEEP}
install -m 600 {KEYS_IN_CONTAINER}/id_ed25519 {_KEEP}/key
(umask 077; export -p > {_KEEP}/environment)
"""

_RANK = f"""\
#!/bin/bash
# One rank of the engine, with this container's own variables. It fails, with all its children, on serve.sh's signal.
set -eu
. {_KEEP}/environment
trap 'trap "" TERM; kill -- "-$$"; exit 1' USR1
trtllm-llmapi-launch bash {FILES_IN_CONTAINER}/serve.sh $$ "$@" &
wait "$!"
"""

_SERVER = """\
#!/bin/bash
# serve.sh RANK COMMAND...: the server, and then the end of the rank, which would wait for ever for one that has failed.
set -u
rank=$1
shift
"$@"
echo "The server has ended with exit code $?." >&2
kill -USR1 "$rank"
"""

_WORKER = f"""\
#!/bin/bash
# worker.sh PORT: an sshd for the group's leader alone.
set -eu
{_KEY}install -m 600 {KEYS_IN_CONTAINER}/id_ed25519.pub {_KEEP}/authorized_keys
install -d -m 755 /run/sshd
command -v sshd >/dev/null || {{ echo "sshd: command not found. {_NEEDS}" >&2; exit 127; }}
exec "$(command -v sshd)" -D -e -f /dev/null -p "$1" -h {_KEEP}/key -o ListenAddress=%(address)s \\
  -o AuthorizedKeysFile={_KEEP}/authorized_keys -o PermitRootLogin=prohibit-password \\
  -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no -o StrictModes=no -o UsePAM=no
"""

_LEADER = f"""\
#!/bin/bash
# leader.sh PORT COMMAND...: starts rank.sh on every node; on the others through their sshd on that port.
set -eu
port=$1
shift
{_KEY}sed 's/^/* /' {KEYS_IN_CONTAINER}/id_ed25519.pub > {_KEEP}/known_hosts
command -v ssh >/dev/null || {{ echo "ssh: command not found. {_NEEDS}" >&2; exit 127; }}
exec "$(command -v mpirun)" --allow-run-as-root -np %(ranks)s -H %(hosts)s --map-by ppr:1:node --bind-to none \\
  --mca plm_rsh_agent ssh --mca plm_rsh_args "-p $port -i {_KEEP}/key -o IdentitiesOnly=yes \\
-o ConnectTimeout=10 -o ConnectionAttempts={_ATTEMPTS} -o StrictHostKeyChecking=yes \\
-o UserKnownHostsFile={_KEEP}/known_hosts" \\
  --mca btl_tcp_if_include %(subnet)s --mca oob_tcp_if_include %(subnet)s --mca oob_tcp_disable_ipv6_family 1 \\
  bash {FILES_IN_CONTAINER}/rank.sh "$@"
"""


def _files(candidate: Candidate, context: RankContext) -> tuple[LaunchFile, ...]:
    text = yaml.safe_dump(options(candidate, context), sort_keys=False)
    files = [LaunchFile(name=OPTIONS, text=text)]
    if candidate.shape.ranks == 1:
        return tuple(files)
    if len(context.peers) != candidate.shape.ranks or not context.keys_dir:
        raise EngineError(
            "TensorRT-LLM over several nodes needs the address of every rank and a key pair of the group.",
            do="This is a bug in sparkfleet: please report it.",
        )
    files.append(LaunchFile(name="rank.sh", text=_RANK, executable=True))
    files.append(LaunchFile(name="serve.sh", text=_SERVER, executable=True))
    files.append(_leader(candidate, context) if context.rank == 0 else _worker(context))
    return tuple(files)


def _worker(context: RankContext) -> LaunchFile:
    return LaunchFile(name="worker.sh", text=_WORKER % {"address": context.address}, executable=True)


def _leader(candidate: Candidate, context: RankContext) -> LaunchFile:
    hosts = ",".join(f"{address}:1" for address in context.peers)
    text = _LEADER % {"ranks": candidate.shape.ranks, "hosts": hosts, "subnet": _subnet(context.peers)}
    return LaunchFile(name="leader.sh", text=text, executable=True)


def _subnet(addresses: Sequence[str]) -> str:
    """The smallest network that contains all of them: each node finds its own netdev by it, as names may differ.

    At most 31 bits: Open MPI 4 turns 32 into an empty mask (`opal_net_prefix2netmask`), which matches every interface.

    Raises:
        EngineError: one is a name or an IPv6 address, which Open MPI 4 does not accept with a number of slots.
    """
    other = [address for address in addresses if not _is_ipv4(address)]
    if other:
        raise EngineError(
            f"TensorRT-LLM over several nodes needs IPv4 addresses, and {other[0]} is none.",
            means="MPI selects its network by an IPv4 subnet.",
            do="Set an IPv4 address for the node, or for its end of the link, in the inventory, or choose another engine.",
        )
    found = ip_network(f"{addresses[0]}/31", strict=False)
    while any(ip_address(address) not in found for address in addresses):
        found = found.supernet()
    return str(found)


def _is_ipv4(address: str) -> bool:
    try:
        return ip_address(address).version == 4
    except ValueError:
        return False  # the inventory may have a name instead of an address


def _mounts(candidate: Candidate, context: RankContext) -> tuple[Mount, ...]:
    common = (*checkpoint_mounts(context), *cache_mounts(context), *encodings_mounts(context))
    if candidate.shape.ranks == 1:
        return common
    return (*common, Mount(source=context.keys_dir, target=KEYS_IN_CONTAINER))


def _environment(candidate: Candidate, context: RankContext) -> Pairs:
    # Weights are staged before a rank starts; an engine never downloads.
    caches = (*cache_env(context), *trtllm_cache_env(candidate, context))
    common = (("HF_HUB_OFFLINE", "1"), *encodings_env(context), *caches)
    return common if candidate.shape.ranks == 1 else (*common, *fabric_env(context, candidate.device))

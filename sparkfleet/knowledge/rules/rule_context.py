"""The facts that rules refer to: one flat value, every field optional. None means: not known.

A planner fills in its decisions and its input; a node check adds readings of the node. Text that is known to be empty
(`image=""`: no container image) is not the same as None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator

from sparkfleet.specs.deployment import EngineName, Method, TextKind
from sparkfleet.values import Value


class FactKind(Enum):
    """Kinds of facts, each with its own form of condition."""

    TEXT = "text"
    VERSION = "version"
    NUMBER = "number"
    YES_NO = "yes or no"
    SET = "set"
    OPTIONS = "options"
    """Command-line flags or environment variables: names, some with a value."""


def _pairs(value: object) -> object:
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


Text = Annotated[str | None, FactKind.TEXT]
VersionNumber = Annotated[str | None, FactKind.VERSION]
Number = Annotated[float | None, FactKind.NUMBER]
YesNo = Annotated[bool | None, FactKind.YES_NO]
Names = Annotated[tuple[str, ...] | None, FactKind.SET]
Flags = Annotated[tuple[str, ...] | None, FactKind.OPTIONS]
Environment = Annotated[tuple[tuple[str, str], ...] | None, FactKind.OPTIONS, BeforeValidator(_pairs)]

TopologyName = Literal["none", "direct", "ring", "switch"]
Feature = Literal["moe", "gdn", "mamba", "hybrid", "mla", "sliding", "vision", "nvfp4_head"]


class RuleContext(Value):
    """Facts about a candidate, its checkpoint, its image and its nodes that rules can refer to."""

    # Engine, image and kernels
    device: Annotated[Literal["cuda", "cpu"] | None, FactKind.TEXT] = None
    engine: Annotated[EngineName | None, FactKind.TEXT] = None
    engine_version: VersionNumber = None
    runtime: Annotated[Literal["process", "container"] | None, FactKind.TEXT] = None
    image: Text = None
    """Repository and tag, without the digest; "" if no image is used."""
    image_digest: Text = None
    """"" if the image is named by its tag only."""
    nccl_version: VersionNumber = None
    flashinfer_version: VersionNumber = None
    cutlass_version: VersionNumber = None
    ptxas_version: VersionNumber = None
    """Of the ptxas that Triton calls."""
    fastsafetensors_version: VersionNumber = None

    # The checkpoint
    model: Text = None
    model_type: Text = None
    architecture: Text = None
    """Class of the model, the first of config.json's `architectures`."""
    loading: Annotated[Literal["listed", "absent", "unproven", "unknown"] | None, FactKind.TEXT] = None
    """Support for this architecture in the engine's release (`knowledge/engines/engine_models.py`)."""
    quant: Text = None
    """Format of most quantised weights: nvfp4, mxfp4, fp8, gptq-int4, awq, int4-autoround, nf4, bnb-int8, bf16 …; "fp8" of
    FP8 with MXFP4 experts, too, which images.yaml and plans name "fp8+mxfp4-experts"."""
    quant_method: Text = None
    """fp8, compressed-tensors, modelopt …, as its config declares it; undeclared: none, or only its name is known."""
    features: Annotated[tuple[Feature, ...] | None, FactKind.SET] = None
    """Of its architecture, and `nvfp4_head`: its output head is quantised, too."""
    advisories: Names = None
    """Ids of the security advisories that affect the engine's version."""
    weight_gb: Number = None
    """All weights as engines hold them, GB (1e9 bytes)."""
    weight_gb_per_node: Number = None
    fits_one_node: YesNo = None
    tp_divides_heads: YesNo = None
    """True if attention heads and KV heads can be split over `tp` ranks."""
    tp_divides_blocks: YesNo = None
    """True if each rank's part of the dense feed-forwards and of the shared experts is whole blocks of FP8, or none has
    such blocks."""
    tp_divides_widths: YesNo = None
    """True if the columns of feed-forwards and the rows of the vocabulary can be split over `tp` ranks."""
    tp_divides_groups: YesNo = None
    """True if each rank's part of attention, dense feed-forwards and shared experts is whole groups of INT4 or INT8, or none
    has such groups."""
    tp_divides_expert_groups: YesNo = None
    """The same of a routed expert."""
    expert_block: Number = None
    """If a rank's part of a routed expert is not whole blocks of FP8: rows of the largest block that divides both; 0 if it
    is whole blocks, or the routed experts are not in such blocks."""

    # Settings
    kv_dtype: Text = None
    """"auto" if it follows the weights."""
    attention_backend: Text = None
    """"auto" if the engine chooses; likewise the other backends."""
    moe_backend: Text = None
    linear_backend: Text = None
    gdn_backend: Text = None
    executor: Annotated[Literal["mp", "ray"] | None, FactKind.TEXT] = None
    load_format: Text = None
    speculation: Annotated[Method | None, FactKind.TEXT] = None
    speculation_tokens: Number = None
    cuda_graphs: YesNo = None
    memory_fraction: Number = None
    memory_fraction_set: YesNo = None
    """False if the engine's own default is in force."""
    kv_disk: YesNo = None
    """True if the deployment keeps KV on the disk."""
    kv_pinned: YesNo = None
    """True if the KV cache has a size in bytes."""
    batch_tokens: Number = None
    """Most tokens of one prefill step."""
    context: Number = None
    concurrency: Number = None
    flags: Flags = None
    env: Environment = None

    # The shape and the links
    tp: Number = None
    pp: Number = None
    ep: Number = None
    dcp: Number = None
    """Decode context parallelism: ranks that share one copy of the KV cache."""
    nodes: Number = None
    topology: Annotated[TopologyName | None, FactKind.TEXT] = None
    link: Text = None
    """roce-dual, roce-single, tcp, 10gbe …: the names of hardware.yaml."""

    # Requirements of the deployment
    needs: Names = None
    """vision, tools."""
    content: Annotated[TextKind | None, FactKind.TEXT] = None
    """Kind of text that is mostly written."""
    license_policy: Annotated[Literal["open", "any"] | None, FactKind.TEXT] = None

    # The platform
    driver: VersionNumber = None
    kernel_os: VersionNumber = None

    # Read on the nodes: memory
    unaccounted_gb: Number = None
    """MemTotal minus all uses that /proc/meminfo lists, GB."""
    compute_processes: Number = None
    free_below_budget: YesNo = None
    """True if CUDA reports less free memory than the memory fraction needs."""
    swap_gb: Number = None
    swappiness: Number = None
    shm_gb: Number = None
    kernel_log_no_memory: YesNo = None
    """NV_ERR_NO_MEMORY in the kernel log since boot."""

    # Read on the nodes: power, firmware, driver
    gpu_util_percent: Number = None
    gpu_power_w: Number = None
    sm_clock_mhz: Number = None
    hottest_zone_c: Number = None
    ec_firmware: Text = None
    driver_mismatch: YesNo = None
    """True if kernel module and libraries of the driver have different versions."""
    mlnx_fw_updater: YesNo = None
    cx7_present: YesNo = None
    cx7_power_warning: YesNo = None

    # Read on the nodes: network
    link_mbps: Number = None
    """Negotiated speed of a QSFP port."""
    rail_gbps: Number = None
    """Measured RDMA bandwidth of the slower rail, Gb/s."""
    rails: Number = None
    """Number of rails of the link that have an address and are used."""
    rails_share_subnet: YesNo = None
    rails_bonded: YesNo = None
    rail_dhcp: YesNo = None
    """True if NetworkManager requests an address on a rail without a DHCP server."""
    rail_neighbours_known: YesNo = None
    gid_index_differs: YesNo = None
    """True if the IPv4 RoCE v2 entry has another index on some rail."""
    memlock_unlimited: YesNo = None
    ufw_active: YesNo = None
    ufw_allows_rails: YesNo = None
    node_address: Text = None

    # Read on the nodes: host and caches
    linger: YesNo = None
    remove_ipc: YesNo = None
    identity_shared: YesNo = None
    """True if two nodes have the same machine-id or host key."""
    clock_synced: YesNo = None
    kho_off: YesNo = None
    hf_refs_main: YesNo = None

    @property
    def image_name(self) -> str | None:
        """The image without its tag."""
        return None if self.image is None else _split_image(self.image)[0]

    @property
    def image_tag(self) -> str | None:
        """The tag of the image, "" if it has none."""
        return None if self.image is None else _split_image(self.image)[1]

    @property
    def image_tag_name(self) -> str | None:
        """The tag of the image as text, for globs; "" if it has none."""
        return self.image_tag

    @property
    def flag_values(self) -> Mapping[str, str] | None:
        """The flags by name, values joined by blanks, "" for switches."""
        return None if self.flags is None else parse_flags(self.flags)

    @property
    def env_values(self) -> Mapping[str, str] | None:
        """The environment by name."""
        return None if self.env is None else _by_name(self.env)


def _split_image(image: str) -> tuple[str, str]:
    name, colon, tag = image.rpartition(":")
    # A colon before the last slash belongs to the port of a registry.
    return (name, tag) if colon and "/" not in tag else (image, "")


@lru_cache(maxsize=512)
def _by_name(env: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return dict(env)


_FLAG = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)


@lru_cache(maxsize=512)
def parse_flags(argv: tuple[str, ...]) -> Mapping[str, str]:
    """Flags by name: `--moe-backend=marlin` and `--moe-backend marlin` alike, underscores as dashes."""
    found: dict[str, str] = {}
    name = ""
    for word in argv:
        if _FLAG.fullmatch(word):
            name, _, value = word.partition("=")
            name = name.replace("_", "-")
            found[name] = value
        elif name:
            found[name] = f"{found[name]} {word}".strip()
    return found


def _kinds() -> dict[str, FactKind]:
    declared = {
        name: next(item for item in field.metadata if isinstance(item, FactKind))
        for name, field in RuleContext.model_fields.items()
    }
    return {
        **declared,
        "image_name": FactKind.TEXT,
        "image_tag": FactKind.VERSION,
        "image_tag_name": FactKind.TEXT,
    }


FACTS: Mapping[str, FactKind] = _kinds()
"""Every fact that a rule may refer to, with its kind."""


def _choices(declared: object) -> Iterator[str]:
    """The words of a type's literals, however deep."""
    for part in get_args(declared):
        yield from (part,) if isinstance(part, str) else _choices(part)


CHOICES: Mapping[str, frozenset[str]] = {
    name: words
    for name, field in RuleContext.model_fields.items()
    if (words := frozenset(_choices(field.annotation)))
}
"""All values of each fact that has a closed list of them."""

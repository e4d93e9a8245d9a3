"""Programs that ask an engine for its own parsers and checks; each prints `RESULT` and JSON."""

VLLM = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
import vllm
parser = make_arg_parser(FlexibleArgumentParser())
for line in json.load(sys.stdin):
    parser.parse_args(line)
flags = sorted({f for a in parser._actions for f in a.option_strings if f.startswith('--')})
plain = sorted({f for a in parser._actions if a.nargs == 0 for f in a.option_strings if f.startswith('--')})
limited = [a for a in parser._actions if a.choices]
choices = {f: list(map(str, a.choices)) for a in limited for f in a.option_strings if f.startswith('--')}
import dataclasses, typing
from vllm.config import speculative
def names(kind):
    return {name for one in typing.get_args(kind) for name in ([one] if isinstance(one, str) else names(one))}
keys = sorted(field.name for field in dataclasses.fields(speculative.SpeculativeConfig))
methods = sorted(names(speculative.SpeculativeMethod))
print('RESULT', json.dumps([vllm.__version__, flags, plain, choices, keys, methods], sort_keys=True))
"""

REGISTRIES = """
import json
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
print('RESULT', json.dumps([ReasoningParserManager.list_registered(), ToolParserManager.list_registered()]))
"""

DEEP = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.engine.arg_utils import AsyncEngineArgs
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
parser = make_arg_parser(FlexibleArgumentParser())
found = []
for line in json.load(sys.stdin):
    try:
        config = AsyncEngineArgs.from_cli_args(parser.parse_args(line)).create_engine_config()
        answer = config.speculative_config
        found.append([config.parallel_config.world_size, answer.method if answer else 'none'])
    except Exception as error:
        found.append(f'{type(error).__name__}: {error}')
print('RESULT', json.dumps(found))
"""

DRAFTS = """
import json, sys
from vllm.config import ParallelConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
parser = make_arg_parser(FlexibleArgumentParser())
found = []
for line in json.load(sys.stdin):
    args = AsyncEngineArgs.from_cli_args(parser.parse_args(line))
    answer = args.create_speculative_config(args.create_model_config(), ParallelConfig())
    k, steps = answer.num_speculative_tokens, answer.num_speculative_tokens_per_batch_size
    depths = build_dynamic_sd_schedule_lookup(steps, args.max_num_seqs, k)[1:] if steps else []
    try:
        args.create_engine_config()
        runs = ''
    except Exception as error:
        runs = str(error)
    found.append([answer.method, answer.draft_model_config.architectures[0], k, depths, runs])
print('RESULT', json.dumps(found))
"""

DCP = """
import json, sys
from types import SimpleNamespace
from vllm.config.model import ModelConfig
from vllm.config.parallel import ParallelConfig
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl
from vllm.v1.attention.backends.mla.flashinfer_mla_sparse_sm120 import FlashInferMLASparseSM120Impl
from vllm.v1.attention.backends.mla.triton_mla import TritonMLAImpl
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl
def takes(mla, queries, heads, tp, dcp):
    try:
        ParallelConfig(
            tensor_parallel_size=tp, decode_context_parallel_size=dcp, distributed_executor_backend='mp', nnodes=tp
        )
        model = SimpleNamespace(
            model_arch_config=SimpleNamespace(total_num_attention_heads=queries), use_mla=mla, multimodal_config=None,
            get_total_num_kv_heads=lambda: heads, registry=None, architectures=[],
        )
        parallel = SimpleNamespace(
            enable_hc_sp=False, tensor_parallel_size=tp, enable_expert_parallel=False, pipeline_parallel_size=1,
            decode_context_parallel_size=dcp, world_size_across_dp=tp,
        )
        ModelConfig.verify_with_parallel_config(model, parallel)
    except ValueError:
        return False
    return True
impls = (TritonMLAImpl, FlashAttentionImpl, FlashInferMLASparseSM120Impl, CPUAttentionBackendImpl)
asked = json.load(sys.stdin)
print('RESULT', json.dumps([[takes(*one) for one in asked], [impl.supports_dcp for impl in impls]]))
"""

SGLANG = """
import argparse, json, sys
from importlib.metadata import version
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(allow_abbrev=False)
ServerArgs.add_cli_args(parser)
for line in json.load(sys.stdin):
    parser.parse_args(line)
flags = sorted({f for a in parser._actions for f in a.option_strings if f.startswith('--')})
limited = [a for a in parser._actions if a.choices]
choices = {f: list(map(str, a.choices)) for a in limited for f in a.option_strings if f.startswith('--')}
print('RESULT', json.dumps([version('sglang'), flags, choices]))
"""

SGLANG_DEEP = """
import json, sys
from sglang.srt.server_args import prepare_server_args
found = []
for line in json.load(sys.stdin):
    try:
        answer = prepare_server_args([*line, '--device', 'cuda'])
        answer.resolve_once()
        answer.check_server_args()
        known, names = answer.resolved_dict(), ('algorithm', 'num_draft_tokens', 'adaptive')
        found.append([known['tp_size'], known['nnodes'], *(known['speculative_' + name] for name in names)])
    except BaseException as error:
        found.append(f'{type(error).__name__}: {error}')
print('RESULT', json.dumps(found))
"""

FORKS = """
import io, json, os, sys, traceback
import vllm.engine.arg_utils, vllm.reasoning, vllm.tool_parsers, vllm.utils.argparse_utils
try:
    import vllm.entrypoints.launchers.cli_args
except ImportError:
    import vllm.entrypoints.openai.cli_args
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(asked['errors'], os.O_WRONLY), 2)
        os.environ.update(asked['env'])
        sys.stdin = io.StringIO(json.dumps(asked['lines']))
        try:
            exec(asked['program'], {'__name__': '__main__'})
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    print('END', flush=True)
"""
"""Imports vLLM once, which takes longer than most questions, and asks each in a child of its own."""

SHIM = """
import json, sys
from importlib.metadata import version
import torch
from vllm.plugins import load_general_plugins
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts as experts
seen = {}
def kernel(self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map, *rest):
    seen.update(ids=topk_ids.tolist(), weights=topk_weights.tolist(), type=str(topk_ids.dtype))
experts.apply = kernel
load_general_plugins()
weights, ids = torch.tensor([[0.7, 0.3], [0.6, 0.4]]), torch.tensor([[0, 3], [2, 1]], dtype=torch.int32)
where = torch.tensor([-1, -1, 0, 1], dtype=torch.int32)
experts.apply(None, None, None, None, None, weights, ids, 'silu', 4, where, None, None, None, None, None, False)
mapped = dict(seen)
experts.apply(None, None, None, None, None, weights, ids, 'silu', 4, None, None, None, None, None, None, False)
print('RESULT', json.dumps([version('vllm'), mapped, seen]))
"""

"""Facts of llama.cpp that plans and launches share: a setting that takes memory, and models that some drafts can read."""

CONTEXT_CHECKPOINTS = 2
"""Context checkpoints per slot (`--ctx-checkpoints`), each a copy of the state that cannot be rolled back: sliding windows
and recurrent layers, 75 MiB for gpt-oss-120b and Qwen3-Next, above 1 GiB for Gemma 3 27B (computed from their layers).
llama.cpp's default is 32. The two newest are before the last tokens of a slot's prompt: a conversation goes on from there
without a new prefill."""

LAYERS_READ_BY = ("eagle3", "dflash", "dflash2", "dspark")
"""Methods whose drafts read the inputs of the model's layers."""
LAYERS_OF = frozenset(
    {
        "bailing_hybrid",
        "gemma4",
        "gpt_oss",
        "hunyuan_v1_dense",
        "hunyuan_vl",
        "lfm2",
        "lfm2_moe",
        "llama",
        "mimo_v2",
        "minimax_m2",
        "muse_glimmer",
        "nemotron_h",
        "qwen3",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_moe",
        "qwen3_next",
        "qwen4_exp",
    }
)
"""Models whose graphs give them out in b11434 (`t_layer_inp` of src/models/*.cpp), by `model_type`. With any other one, such
as GLM, DeepSeek V3 and Gemma 3, a server with such a draft ends at its start by an assertion (src/llama-graph.cpp)."""

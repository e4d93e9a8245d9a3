"""A setting of llama.cpp that takes memory: plans count it, and launches pass it."""

CONTEXT_CHECKPOINTS = 2
"""Context checkpoints per slot (`--ctx-checkpoints`), each a copy of the state that cannot be rolled back: sliding windows
and recurrent layers, 75 MiB for gpt-oss-120b and Qwen3-Next, above 1 GiB for Gemma 3 27B (computed from their layers).
llama.cpp's default is 32. The two newest are before the last tokens of a slot's prompt: a conversation goes on from there
without a new prefill."""

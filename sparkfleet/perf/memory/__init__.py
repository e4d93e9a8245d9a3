"""Unified memory of a rank: weights, KV cache, recurrent state, activations."""

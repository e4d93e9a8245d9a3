"""Checkpoints in the GGUF format of llama.cpp."""

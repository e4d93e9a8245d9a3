"""Plans engines that run on CPUs: built-in models, GGUF files, and checkpoints in a directory."""

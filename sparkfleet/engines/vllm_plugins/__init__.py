"""Parts that vLLM loads in its own processes, and the files by which a rank has them."""

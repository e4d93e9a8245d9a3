#!/bin/bash
# A launch script as people share them.
set -e
MODEL=${1:-Qwen/Qwen3.6-27B-FP8}
FLAGS=(
  --kv-cache-dtype fp8        # half the KV cache
  --enable-auto-tool-choice --tool-call-parser qwen3_coder
)
docker run -d --name vllm --gpus all --ipc=host -p 8000:8000 \
  -e HF_TOKEN="$HF_TOKEN" -e VLLM_MARLIN_USE_ATOMIC_ADD=1 \
  vllm/vllm-openai:v0.31.0-aarch64 \
  --model "$MODEL" --served-model-name assistant \
  --max-model-len 131072 --max-num-seqs 16 --gpu-memory-utilization 0.92 \
  --host 0.0.0.0 --port 8000 --trust-remote-code "${FLAGS[@]}" \
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'

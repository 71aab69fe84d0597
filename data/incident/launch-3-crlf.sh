#!/usr/bin/env bash
# Serve the frozen target of an online DFlash training; GPUs 2 and 3 are the trainer's.
export CUDA_VISIBLE_DEVICES=0,1

python -m sglang.launch_server \
  --model-path Qwen/Qwen3.6-27B \
  --tensor-parallel-size 2 \
  --speculative-algorithm NEXTN \
  --speculative-num-steps 3 \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 4 \
  --mem-fraction-static 0.8 \
  --mamba-scheduler-strategy extra_buffer

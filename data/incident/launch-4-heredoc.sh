#!/usr/bin/env bash
# The same server, started on the node from a laptop.
ssh b200-node <<EOF
export CUDA_VISIBLE_DEVICES=0,1
STRATEGY="--mamba-scheduler-strategy extra_buffer"
python -m sglang.launch_server \\
  --model-path Qwen/Qwen3.6-27B \\
  --tensor-parallel-size 2 \\
  --speculative-algorithm NEXTN \\
  --speculative-num-steps 3 \\
  --speculative-eagle-topk 1 \\
  --speculative-num-draft-tokens 4 \\
  --mem-fraction-static 0.8 \\
  $STRATEGY
EOF

#!/bin/bash
# One task of the array is one run. Submit from the checkout:
#
#   .venv/bin/casebook run -f examples/runs.yaml --plan manifest.jsonl
#   sbatch --array=0-$(($(wc -l < manifest.jsonl) - 1)) examples/slurm-array.sh manifest.jsonl
#
# and when the array has ended, gather:  .venv/bin/casebook run --manifest manifest.jsonl
#
#SBATCH --job-name=casebook
#SBATCH --cpus-per-task=2
#SBATCH --mem=8G
#SBATCH --time=01:00:00
#SBATCH --output=results/slurm-%A_%a.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?submit this from the checkout}"

# The limit of the run is below that of the task, so that the run says itself that it took too long.
exec .venv/bin/casebook run --manifest "$1" --index "${SLURM_ARRAY_TASK_ID:?this is one task of an array}" --seconds 3000

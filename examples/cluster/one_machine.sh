#!/bin/bash
# Prepares for all GPUs of this machine, and trains on them; where it has none, with two processes on its processors.
#
#     examples/cluster/one_machine.sh my.oc my.run checkpoint [OPTION OF outcrop train]...
#
# The same command goes on where it was: with what was prepared, and from the last checkpoint.
set -euo pipefail
graph=$1 run=$2 checkpoint=$3
prepare=(--fanouts 10,10 --memory 4GiB)

if processes=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU '); then device=cuda; else processes=2 device=cpu; fi
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
outcrop prepare "$graph" "$run" "${prepare[@]}" --processes "$processes"
exec torchrun --standalone --nproc-per-node="$processes" --max-restarts=3 -m outcrop -- \
  train "$graph" --run "$run" --checkpoint "$checkpoint" --checkpoint-minutes 10 --device "$device" "${@:4}"

#!/usr/bin/env bash
# What needs a GPU, in phases that each end within 8 minutes, on a machine that may have no network:
#   scripts/gpu-check.sh [--out FOLDER] [--again] [--seconds N] [PHASE [NAME...]]
#     build                     the C++ core, in place; every kernel compiled for every architecture (needs no GPU)
#     tests [MODULE...]         tests/device and whatever else is marked gpu, each module in a process of its own
#     sanitizer [FAMILY...]     kernels of a family under compute-sanitizer: gather assemble sample io_queue fused
#     bench [NAME...]           outcrop bench gpu --name NAME (docs/gpu-benchmarks.md): gpu-NAME.json, case by case
#     list                      what was done and what remains (also where no phase is given)
# A phase goes on where an earlier call stopped: what ended with the same sources is not run again, unless by --again.
# Each part leaves one JSON file (scripts/gpu_record.py) in build/gpu/records and in FOLDER (benchmarks/results/gpu by
# default); files of earlier calls in either count as done. PYTHON names the interpreter that has torch.
# Status: 0 all that was asked for passed, 1 something failed, 2 it cannot run here, 75 time is up, call again.
# Packages that are missing can be put as wheels into .whl/ (or the folder that OUTCROP_WHEELS names).
here=$(dirname "${BASH_SOURCE[0]}")
for python in ${PYTHON:-} python3 "$here/../.venv/bin/python"; do  # any will do: it finds the one with torch itself
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    exec "$python" "$here/gpu_check.py" "$@"
  fi
done
echo "error: no Python 3.10 or newer" >&2
exit 2

#!/usr/bin/env bash
# Fuzzes what reads files that may lie, guided by coverage: the targets of tests/fuzz in C++ (libFuzzer, under
# AddressSanitizer and UndefinedBehaviorSanitizer), and the readers of tests/fuzz/readers.py in Python (atheris).
#   scripts/fuzz.sh [--keep] [SECONDS] [TARGET...]   each that long (60), as many at a time as there are cores
# What was kept of earlier searches is in tests/fuzz/corpus/TARGET, what is found goes to build/fuzz/corpus, inputs that fail
# to build/fuzz/failed. --keep puts what is new into the former: as few inputs as reach the same code.
source "$(dirname "$0")/common.sh"
source scripts/system.sh
keep=
if [ "${1:-}" = --keep ]; then keep=1; shift; fi
seconds=60
if [[ ${1:-} =~ ^[0-9]+$ ]]; then seconds=$1; shift; fi
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
python=$PWD/$venv/bin/python
readers=$PWD/tests/fuzz/readers.py
export OMP_NUM_THREADS=1 PYTHONPATH=$PWD/$venv/beside-atheris OUTCROP_PROGRESS=0

targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  mapfile -t targets < <(cd tests/fuzz && ls fuzz_*.cpp | sed 's/\.cpp$//' && sed -n 's/^    "\([a-z]*\)": Reader(.*/\1/p' readers.py)
fi
if [[ " ${targets[*]}" == *" fuzz_"* ]]; then
  say "fuzz targets: building (two minutes at first)"
  PATH=$PWD/$venv/bin:$PATH quietly fuzz-configure cmake -S . -B build/fuzz/cmake -G Ninja -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_CXX_COMPILER="$(find_clang)" -DOUTCROP_PYTHON=OFF -DOUTCROP_FUZZ=ON -DOUTCROP_SANITIZE=address,undefined
  PATH=$PWD/$venv/bin:$PATH quietly fuzz-build cmake --build build/fuzz/cmake --parallel "$jobs"
fi

fuzz() { # fuzz TARGET
  local found=build/fuzz/corpus/$1 kept=tests/fuzz/corpus/$1 failed=build/fuzz/failed/$1 run=(build/fuzz/cmake/"$1")
  [ -x "${run[0]}" ] || run=("$python" "$readers" "$1")
  mkdir -p "$found" "$kept" "$failed"
  if "${run[@]}" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -artifact_prefix="$failed/" "$found" "$kept" \
    >"$logs/fuzz-$1.log" 2>&1; then
    printf '  %-14s %s, nothing found\n' "$1" "$(sed -n 's/^Done \([0-9]* runs\).*/\1/p' "$logs/fuzz-$1.log")"
  else
    printf '  %-14s FAILED\n' "$1"
    tail -n 40 "$logs/fuzz-$1.log"
    return 1
  fi
  [ -z "$keep" ] || "${run[@]}" -merge=1 "$kept" "$found" >>"$logs/fuzz-$1.log" 2>&1
}
export -f fuzz
export logs seconds keep python readers
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'set -euo pipefail; fuzz {}'

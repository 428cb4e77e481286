#!/usr/bin/env bash
# Fuzzes what reads files that may lie, guided by coverage: the targets of tests/fuzz in C++ (libFuzzer, under
# AddressSanitizer and UndefinedBehaviorSanitizer), and the readers of tests/fuzz/readers.py in Python (atheris).
#   scripts/fuzz.sh [--keep] [--json FILE] [SECONDS] [TARGET...]   each that long (60), as many at a time as there are cores
#   scripts/fuzz.sh --fixed [TARGET...]              what .ci/run does: a fixed number of inputs, the same each time
# What was kept of earlier searches is in tests/fuzz/corpus/TARGET, what is found goes to build/fuzz/corpus, inputs that fail
# to build/fuzz/failed. --keep chooses anew what is kept (scripts/keep_corpus.py), --json adds what was tried to the searches
# that FILE lists (scripts/fuzz_figures.py).
source "$(dirname "$0")/common.sh"
source scripts/system.sh
keep='' fixed='' json=''
if [ "${1:-}" = --keep ]; then keep=1; shift; fi
if [ "${1:-}" = --json ]; then json=${2:?a file}; shift 2; fi
if [ "${1:-}" = --fixed ]; then fixed=1; shift; fi
[ -z "$json" ] || [ -z "$fixed" ] || die "--json is about searches, --fixed is none"
seconds=60
if [[ ${1:-} =~ ^[0-9]+$ ]]; then seconds=$1; shift; fi
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
python=$PWD/$venv/bin/python
readers=$PWD/tests/fuzz/readers.py
export OMP_NUM_THREADS=1 PYTHONPATH=$PWD/$venv/beside-atheris OUTCROP_PROGRESS=0 PYTHONHASHSEED=0

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

# How many inputs --fixed tries: what each target does in a few seconds under sanitizers.
fixed_runs() {
  case $1 in
    fuzz_rows) echo 15000 ;;
    fuzz_sampler) echo 8000 ;;
    fuzz_wave) echo 4000 ;;
    fuzz_buckets) echo 600 ;;
    fuzz_*) echo 1500 ;;
    *) echo 200 ;;
  esac
}

fuzz() { # fuzz TARGET
  local found=build/fuzz/corpus/$1 kept=tests/fuzz/corpus/$1 failed=build/fuzz/failed/$1 run=(build/fuzz/cmake/"$1")
  local options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -artifact_prefix="$failed/" "$found" "$kept")
  [ -x "${run[0]}" ] || run=("$python" "$readers" "$1")
  if [ -n "$fixed" ] && [ -x "build/fuzz/cmake/$1" ]; then  # tests/fuzz/fixed.cpp
    options=(--fixed="$(fixed_runs "$1")" "$failed" "$kept")
  elif [ -n "$fixed" ]; then  # guided, but from one seed, by one thread at the same addresses, and from the valid file alone
    found=build/fuzz/fixed/$1
    rm -rf "$found"
    if setarch "$(uname -m)" -R true 2>/dev/null; then run=(setarch "$(uname -m)" -R "${run[@]}"); fi
    options=(-seed=1 -runs="$(fixed_runs "$1")" "${options[@]:1:3}" "$found" "$kept")
  fi
  mkdir -p "$found" "$kept" "$failed"
  if "${run[@]}" "${options[@]}" >"$logs/fuzz-$1.log" 2>&1; then
    printf '  %-14s %s, nothing found\n' "$1" "$(sed -n 's/^Done \([0-9]* runs\).*/\1/p' "$logs/fuzz-$1.log")"
  else
    printf '  %-14s FAILED\n' "$1"
    tail -n 40 "$logs/fuzz-$1.log"
    return 1
  fi
  [ -z "$keep" ] || "$python" scripts/keep_corpus.py "$kept" "$found" "${run[@]}" >>"$logs/fuzz-$1.log" 2>&1
}
export -f fuzz fixed_runs
export logs seconds keep fixed python readers
status=0
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'set -euo pipefail; fuzz {}' || status=1
[ -z "$json" ] || "$venv/bin/python" scripts/fuzz_figures.py "$json" "$logs" "${targets[@]}"
exit $status

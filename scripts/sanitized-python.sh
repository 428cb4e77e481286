#!/usr/bin/env bash
# Runs Python tests with an extension that was built with sanitizers: scripts/sanitized-python.sh asan|tsan [PYTEST ARGUMENTS...]
# What is wrong in src/core and src/bindings with what Python gives them ends the test: memory out of bounds or after its
# end, undefined behaviour; with tsan, memory that threads share without order. Python, NumPy and torch are not
# instrumented. Without arguments: the quick unit tests. The result goes to build/reports/py-sanitized-<variant>.xml.
source "$(dirname "$0")/common.sh"
variant=${1:-asan}
shift || true
folder=$PWD/build/python-$variant
case $variant in
  asan) sanitizers=address,undefined runtime=libasan.so ;;
  tsan) sanitizers=thread runtime=libtsan.so ;;
  *) die "unknown variant '$variant': asan or tsan" ;;
esac
[ $# -gt 0 ] || set -- -m "not slow and not torture and not gpu" tests/unit

say "the extension ($variant): building (some minutes at first)"
PATH=$PWD/$venv/bin:$PATH
quietly "python-$variant-configure" cmake -S . -B "$folder/cmake" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DSKBUILD=2 \
  -DPython_EXECUTABLE="$PWD/$venv/bin/python" -DOUTCROP_SANITIZE="$sanitizers"
quietly "python-$variant-build" cmake --build "$folder/cmake" --parallel "$jobs"

# A package of this extension and the Python sources, which is found before the one that is installed.
rm -rf "$folder/outcrop"
mkdir -p "$folder/outcrop"
ln -s "$PWD"/src/outcrop/* "$folder/cmake"/_core*.so "$folder/outcrop"
cat >"$folder/sitecustomize.py" <<'PYTHON'
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]
PYTHON

# Python keeps memory to its end, and torch asks for more than there is to see whether it gets it.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:ignore_noninstrumented_modules=1}
export PYTHONPATH=$folder
preload="$(g++ -print-file-name=$runtime):$(g++ -print-file-name=libstdc++.so)"
LD_PRELOAD=$preload "$PWD/$venv/bin/python" -c 'import outcrop._core as core; print("testing", core.__file__)'
LD_PRELOAD=$preload scripts/py-tests.sh "sanitized-$variant" "$@"

#!/usr/bin/env bash
# Builds and runs the C++ tests: scripts/cpp-tests.sh plain|asan|tsan. Results go to build/reports/cpp-<variant>.xml.
# OUTCROP_STRICT=1 (set by .ci/run): a missing GoogleTest is a failure, not a remark.
source "$(dirname "$0")/common.sh"
source scripts/system.sh

variant=${1:-plain}
report=$PWD/$reports/cpp-$variant.xml
rm -f "$report"
PATH=$PWD/$venv/bin:$PATH
case $variant in
  plain) options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG") ;;
  asan) options=(-DCMAKE_BUILD_TYPE=Debug -DOUTCROP_SANITIZE=address,undefined) ;;
  tsan) options=(-DCMAKE_BUILD_TYPE=Debug -DOUTCROP_SANITIZE=thread) ;;
  *) die "unknown variant '$variant': plain, asan or tsan" ;;
esac
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}

if ! compgen -G 'tests/cpp/*.cpp' >/dev/null; then
  say "no C++ tests in tests/cpp"
  exit 0
fi
if ! have_gtest; then
  [ -z "${OUTCROP_STRICT:-}" ] || die "GoogleTest is missing: apt-get install libgtest-dev"
  say "C++ tests left out: GoogleTest is missing (sudo apt-get install libgtest-dev)"
  exit 0
fi

say "C++ tests ($variant): building (a minute or two at first)"
generator=$(command -v ninja >/dev/null && echo Ninja || echo 'Unix Makefiles')
quietly "cpp-$variant-configure" cmake -S . -B "build/cpp-$variant" -G "$generator" \
  -DOUTCROP_TESTS=ON -DOUTCROP_PYTHON=OFF "${options[@]}"
quietly "cpp-$variant-build" cmake --build "build/cpp-$variant" --parallel "$jobs"

# ThreadSanitizer of gcc 12 cannot live with the address space randomisation of newer kernels: switch it off where allowed.
prefix=()
if [ "$variant" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then prefix=(setarch "$(uname -m)" -R); fi
"${prefix[@]}" ctest --test-dir "build/cpp-$variant" --output-on-failure --parallel "$jobs" --timeout 300 \
  --output-junit "$report" --quiet --output-log "$logs/cpp-$variant.log" && status=0 || status=$?
grep -E '^[0-9]+% tests passed|\*\*\*|(Failed|Timeout|SEGFAULT)' "$logs/cpp-$variant.log" || true
[ $status = 0 ] || { tail -n 80 "$logs/cpp-$variant.log"; exit $status; }

#!/usr/bin/env bash
# Runs pytest for one tier: scripts/py-tests.sh TIER [PYTEST ARGUMENTS...]. The result goes to build/reports/py-<tier>.xml.
# OUTCROP_ALLOW_EMPTY=1: a tier without tests is no failure. Tiers of many short tests run in two processes, file by file
# (OUTCROP_TEST_PROCESSES: how many; 0: in this one, as a debugger wants it).
source "$(dirname "$0")/common.sh"
tier=$1
shift
report=$reports/py-$tier.xml
rm -f "$report"
case $tier in
  quick | slow | soak | torture-*) processes=${OUTCROP_TEST_PROCESSES:-2} ;;
  *) processes=0 ;;
esac
# With as many processes as cores each computes on one: threads that wait for a core spin, and take twice the time.
if [ "$processes" -gt 1 ]; then
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
fi
# Collecting imports every file, in every process: of the few slow tests only those that hold one.
if [ "$tier" = slow ]; then
  mapfile -t files < <(grep -rlE --include='test_*.py' 'mark\.(slow|quick_cases)' tests | sort)
  set -- "$@" "${files[@]}"
fi
"$venv/bin/python" -m pytest -n "$processes" --dist loadfile --durations 12 --durations-min 10 --junitxml "$report" -o junit_suite_name="$tier" "$@" && status=0 || status=$?
if [ $status = 5 ] && [ -n "${OUTCROP_ALLOW_EMPTY:-}" ]; then
  say "no tests in tier $tier"
  exit 0
fi
exit $status

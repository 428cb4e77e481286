#!/usr/bin/env bash
# Does a fixed number of random sequences of commands, disturbed (tests/soak), the same sequences each time: some ten
# minutes of one core, in as many processes as there are cores. scripts/stress.sh [SEQUENCES]
source "$(dirname "$0")/common.sh"
sequences=${1:-100}

stress() { # stress K: of the sequences each that $jobs processes leave to the K-th
  "$venv/bin/python" -m tests.soak --sequences "$sequences" --share "$1/$jobs" --seed ci >"$logs/stress-$1.log" 2>&1 &&
    tail -n 1 "$logs/stress-$1.log" | cut -c1-100 ||
    { tail -n 60 "$logs/stress-$1.log"; return 1; }
}
export -f stress
export venv logs jobs sequences
seq "$jobs" | xargs -P "$jobs" -I{} bash -c 'set -euo pipefail; stress {}'

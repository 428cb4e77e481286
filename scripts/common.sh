# Shared by the scripts here; sourced, never run. Everything happens in the repository root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${OUTCROP_VENV:-.venv}
logs=build/logs
reports=build/reports
jobs=${OUTCROP_JOBS:-$(nproc)}
mkdir -p "$logs" "$reports"

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# quietly NAME COMMAND...: output goes to a log, which is shown if the command fails.
quietly() {
  local log="$logs/$1.log"
  shift
  if ! "$@" >"$log" 2>&1; then
    printf '\n--- %s failed; the end of %s:\n' "$1" "$log" >&2
    tail -n 60 "$log" >&2
    return 1
  fi
}

# digest PATH...: one checksum over names and contents, so that a build depends on what files say, not when they were touched.
digest() {
  find "$@" -type f -not -name '*.pyc' -print0 2>/dev/null | LC_ALL=C sort -z | xargs -0 -r sha256sum | sha256sum | cut -c1-32
}

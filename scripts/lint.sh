#!/usr/bin/env bash
# All static checks; every one runs, then the first failures decide. scripts/lint.sh --fix formats instead.
source "$(dirname "$0")/common.sh"
PATH=$PWD/$venv/bin:$PATH
mapfile -t cpp < <(find src/core src/nvme src/bindings tests/cpp tests/fuzz tests/nvme -name '*.h' -o -name '*.cpp' 2>/dev/null | LC_ALL=C sort)

if [ "${1:-}" = --fix ]; then
  ruff check --fix .
  ruff format .
  clang-format -i "${cpp[@]}"
  exit
fi

failed=()
check() {
  local start=$SECONDS name=$1
  shift
  if "$@" >"$logs/lint-$name.log" 2>&1; then
    printf '   %-14s ok      %3d s\n' "$name" $((SECONDS - start))
  else
    printf '   %-14s FAILED  %3d s\n' "$name" $((SECONDS - start))
    head -n 60 "$logs/lint-$name.log" | sed 's/^/      /'
    failed+=("$name")
  fi
}

# The types of the compiled module, for the type checker and for editors.
stub() { python -m nanobind.stubgen -q -m outcrop._core -o src/outcrop/_core.pyi; }

check format ruff format --check --output-format concise .
check ruff ruff check --output-format concise .
check stub stub
check pyright pyright --pythonpath "$venv/bin/python"
check imports env PYTHONPATH=src lint-imports --no-logo --cache-dir build/import-linter
check house python scripts/house.py
check clang-format clang-format --dry-run -Werror "${cpp[@]}"
check shell bash -n scripts/*.sh .ci/run

[ ${#failed[@]} = 0 ] || die "lint failed: ${failed[*]} (make format mends formatting)"

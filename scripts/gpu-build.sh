#!/usr/bin/env bash
# Builds the C++ core beside its Python sources, for the interpreter PYTHON: scripts/gpu-build.sh. Needs no network:
# what is missing is installed from the wheels in .whl/ (or the folder OUTCROP_WHEELS) into build/gpu/site.
source "$(dirname "$0")/common.sh"
: "${PYTHON:?names the interpreter to build for}"
site=$PWD/build/gpu/site
wheels=${OUTCROP_WHEELS:-.whl}
export PYTHONPATH=$PWD/src:$site PATH=$site/bin:$PATH
mkdir -p "$site"
if compgen -G "$wheels/*.whl" >/dev/null; then
  say "installing the wheels of $wheels into $site"
  quietly gpu-wheels "$PYTHON" -m pip install --no-index --no-deps --no-compile --upgrade --target "$site" "$wheels"/*.whl
fi
for module in nanobind cmake; do
  "$PYTHON" -c "import $module" 2>/dev/null || command -v "$module" >/dev/null || die "$module is missing on this machine. \
Where there is no network, download it elsewhere (pip download --no-deps --only-binary=:all: -d $wheels $module)"
done
say "building the C++ core (about half a minute)"
quietly gpu-configure cmake -S . -B build/gpu/cmake -DCMAKE_BUILD_TYPE=Release \
  -DPython_EXECUTABLE="$("$PYTHON" -c 'import sys; print(sys.executable)')" $(command -v ninja >/dev/null && echo -G Ninja)
quietly gpu-build cmake --build build/gpu/cmake --parallel "$jobs"
"$PYTHON" -c 'import outcrop._core'

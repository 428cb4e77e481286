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
missing=
command -v "${CXX:-g++}" >/dev/null || missing+=" a C++20 compiler (g++ 11 or newer)"
command -v cmake >/dev/null || missing+=" cmake"
"$PYTHON" -c 'import nanobind' 2>/dev/null || missing+=" nanobind"
if [ -n "$missing" ]; then
  if "$PYTHON" -c 'import outcrop._core' 2>/dev/null; then
    say "missing here:$missing; the core that came along in src/outcrop is used as it is"
    exit 0
  fi
  die "missing here:$missing. Where there is no network, bring wheels (pip download --no-deps --only-binary=:all: -d $wheels cmake \
nanobind), or src/outcrop/_core*.so built elsewhere for $("$PYTHON" --version)"
fi
say "building the C++ core (about half a minute)"
quietly gpu-configure cmake -S . -B build/gpu/cmake -DCMAKE_BUILD_TYPE=Release \
  -DPython_EXECUTABLE="$("$PYTHON" -c 'import sys; print(sys.executable)')" $(command -v ninja >/dev/null && echo -G Ninja)
quietly gpu-build cmake --build build/gpu/cmake --parallel "$jobs"
"$PYTHON" -c 'import outcrop._core'

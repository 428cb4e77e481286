#!/usr/bin/env bash
# Builds what is published, into dist/: an sdist, and from that sdist a manylinux wheel for every CPython found here
# from 3.11 on (PYTHONS="python3.11 python3.12" names others). From 3.12 on one wheel serves all later Pythons.
# Zig's compiler (a package of the index) builds for glibc 2.28 (GLIBC=2.17 for another) and puts its C++ library inside;
# liburing is linked statically. Then each wheel is installed into an empty environment, in which neither compiler nor
# checkout can be found, and the quick start of README runs there.
#   scripts/wheels.sh          all of it
#   scripts/wheels.sh build    without the last step
#   scripts/wheels.sh try      only that, with what lies in dist/
# WITH_TORCH="python3.11" tries what needs torch with these only: torch is a large download for each of them. With the
# others the rest of the quick start runs: a graph made, imported, prepared and verified.
source "$(dirname "$0")/common.sh"

glibc=${GLIBC:-2.28}
python=$PWD/$venv/bin/python
dist=$PWD/dist
work=$PWD/build/wheels
machine=$(uname -m)

find_pythons() {
  local name
  for name in ${PYTHONS:-python3.11 python3.12 python3.13 python3.14}; do
    if "$name" -c '' 2>/dev/null; then command -v "$name"; else say "no $name here: no wheel is built or tried with it" >&2; fi
  done
}

install_tools() {
  # shellcheck disable=SC2086 — a list of words
  quietly wheel-tools "$python" -m pip install ${OUTCROP_PIP_ARGS:-} --no-deps --require-hashes \
    -r requirements/build.lock -r requirements/run.lock -r requirements/wheels.lock
}

# What is in the wheels and what they ask for, as CycloneDX.
write_bill() {
  local version
  version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/outcrop/__init__.py)
  "$python" -W ignore -m cyclonedx_py requirements requirements/run.lock --pyproject pyproject.toml --mc-type library \
    --output-reproducible -o - 2>"$logs/bill.log" |
    "$python" scripts/sbom.py "liburing=$(pkg-config --modversion liburing)" \
      "libc++=$("$python" -m ziglang version)" >"$dist/outcrop-$version.cdx.json"
}

# A compiler of the host's headers but for libc: those of Python (Debian has some of them in a folder of the
# architecture) come after Zig's own, liburing's from a folder that has nothing else.
make_toolchain() {
  mkdir -p "$work/bin" "$work/uring"
  [ -f /usr/include/liburing.h ] || die "liburing's headers are missing (Debian/Ubuntu: apt-get install liburing-dev)"
  cp -r /usr/include/liburing.h /usr/include/liburing "$work/uring"
  uring=$(find /usr/lib /usr/lib64 -name liburing.a -print -quit 2>/dev/null)
  [ -n "$uring" ] || die "liburing.a is missing: a wheel carries it inside"
  printf '#!/bin/sh\nexec "%s" -m ziglang c++ -target %s-linux-gnu.%s "$@" -idirafter /usr/include\n' \
    "$python" "$machine" "$glibc" >"$work/bin/new"
  chmod +x "$work/bin/new"
  # One that is the same stays: ccache (CMAKE_CXX_COMPILER_LAUNCHER) looks at its time.
  if cmp -s "$work/bin/new" "$work/bin/c++"; then rm "$work/bin/new"; else mv "$work/bin/new" "$work/bin/c++"; fi
}

build_wheel() {  # build_wheel PYTHON
  local version
  version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  say "building a wheel with Python $version for glibc $glibc (two minutes on two cores)"
  rm -rf "$work/raw"
  "$1" -m venv --clear "$work/build-$version"
  quietly "build-tools-$version" "$work/build-$version/bin/pip" install --no-deps --require-hashes -r requirements/build.lock
  PATH=$work/build-$version/bin:$PATH CXX=$work/bin/c++ CMAKE_GENERATOR=Ninja CMAKE_BUILD_PARALLEL_LEVEL=$jobs \
    CMAKE_ARGS="-DURING_INCLUDE=$work/uring -DURING_LIBRARY=$uring" \
    quietly "wheel-$version" "$work/build-$version/bin/pip" wheel --no-deps --no-build-isolation -w "$work/raw" "$work/source"
  PATH=$PWD/$venv/bin:$PATH quietly "auditwheel-$version" \
    "$python" -m auditwheel repair --plat "manylinux_${glibc/./_}_$machine" -w "$dist" "$work"/raw/*.whl
}

try_wheel() {  # try_wheel PYTHON: in an empty environment, with a PATH that has nothing but it
  local version place torch=--without-torch
  version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  place=$(mktemp -d)
  say "trying it with Python $version in an empty environment"
  "$1" -m venv "$place/venv"
  # shellcheck disable=SC2086 — lists of words
  if [[ " ${WITH_TORCH-${pythons[*]}} " == *" $1 "* ]]; then
    torch=
    quietly "install-$version" "$place/venv/bin/pip" install ${OUTCROP_PIP_ARGS:-} -c constraints.txt \
      --find-links "$dist" --only-binary :all: outcrop
  else
    quietly "install-$version" "$place/venv/bin/pip" install --only-binary :all: numpy pyarrow safetensors typer rich
    quietly "install-$version" "$place/venv/bin/pip" install --no-deps --no-index --find-links "$dist" outcrop
  fi
  cp scripts/quickstart.py README.md "$place"
  mkdir "$place/empty"
  (cd "$place" && env -i HOME="$place" TMPDIR="$place" PATH="$place/venv/bin:$place/empty" LC_ALL=C.UTF-8 \
    "$place/venv/bin/python" quickstart.py README.md $torch) || die "the quick start failed with Python $version: see above"
  rm -rf "$place"
}

build_all() {
  local found stable=
  install_tools
  make_toolchain
  rm -rf "$dist" "$work/raw" "$work/source"
  mkdir -p "$dist" "$work/source"
  quietly sdist "$python" -m build --sdist --no-isolation --outdir "$dist" .
  tar -xzf "$dist"/*.tar.gz -C "$work/source" --strip-components 1
  for found in "${pythons[@]}"; do
    if "$found" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
      [ -z "$stable" ] || continue
      stable=$found
    fi
    build_wheel "$found"
  done
  quietly twine "$python" -m twine check --strict "$dist"/*
  write_bill
}

[ -x "$python" ] || die "no $venv: run make build first"
mapfile -t pythons < <(find_pythons)
[ ${#pythons[@]} -gt 0 ] || die "no Python to build with"
if [ "${1:-}" != try ]; then build_all; fi
if [ "${1:-}" != build ]; then
  for found in "${pythons[@]}"; do try_wheel "$found"; done
fi
say "done:"
(cd "$dist" && sha256sum -- *)

#!/usr/bin/env bash
# Prepares .venv for one purpose: scripts/setup.sh build|test|lint|bench|fuzz. Safe to repeat: what is already there and
# unchanged is left alone (stamps in .venv/.stamps hold a digest of what each step was made from).
# PYTHON names the interpreter; OUTCROP_PIP_ARGS is passed to pip, for example
#   OUTCROP_PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"   (torch without its CUDA libraries)
source "$(dirname "$0")/common.sh"
source scripts/system.sh

purpose=${1:-build}
case $purpose in build | test | lint | bench | fuzz) ;; *) die "unknown purpose '$purpose': build, test, lint, bench or fuzz" ;; esac
stamps=$venv/.stamps

fresh() { [ "$(cat "$stamps/$1" 2>/dev/null)" = "$2" ]; }   # fresh STEP DIGEST
done_with() { mkdir -p "$stamps" && printf '%s\n' "$2" >"$stamps/$1"; }

pip() {
  # shellcheck disable=SC2086 — OUTCROP_PIP_ARGS is a list of words
  PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip "$1" ${OUTCROP_PIP_ARGS:-} "${@:2}"
}

# locked LOG SET... [-- PIP ARGUMENTS...]: the versions of requirements/SET.lock, each file compared with its checksum.
locked() {
  local log=$1 files=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do files+=(-r "requirements/$1.lock"); shift; done
  quietly "$log" pip install --no-deps --require-hashes "${files[@]}" "${@:2}"
}

make_venv() {
  if [ -e "$venv/bin/pip" ] && "$venv/bin/python" -c '' 2>/dev/null; then return; fi
  local python
  python=$(find_python)
  say "creating $venv with $("$python" --version) ($python)"
  need_venv "$python"
  rm -rf "$venv"
  quietly venv "$python" -m venv "$venv"
}

prepare_system() {
  local want
  want=$(digest scripts/system.sh)-$purpose-$("${CXX:-g++}" -dumpfullversion 2>/dev/null || echo none)
  fresh "system-$purpose" "$want" && return
  system_packages "$purpose"
  done_with "system-$purpose" "$want"
}

install_torch() {
  local want
  want=$(digest constraints.txt)
  fresh torch "$want" && return
  say "installing torch (0.2 to 3 GB to download, depending on the index; one to five minutes)"
  quietly torch pip install -c constraints.txt torch
  done_with torch "$want"
}

# An editable install finds modules by the paths that they had: a module that became a package has to be installed again.
packages() { find src/outcrop -name __init__.py | LC_ALL=C sort | sha256sum | cut -c1-8; }

install_outcrop() {
  local dependencies sources extra=$1 name
  name=dependencies-${extra:-none}
  dependencies=$(digest pyproject.toml constraints.txt requirements)
  sources=$(digest CMakeLists.txt pyproject.toml src/core src/bindings src/outcrop/device/kernels)-$(have_uring && echo uring || echo pread)-$(packages)
  if ! fresh "$name" "$dependencies"; then
    say "installing build tools and dependencies${extra:+ for $extra} (under a minute)"
    locked tools build run ${extra:+"$extra"}
    say "building and installing outcrop (about half a minute)"
    build "outcrop" . --no-deps
    done_with "$name" "$dependencies"
  elif ! fresh sources "$sources"; then
    say "C++ sources or packages changed: building outcrop again"
    build "outcrop" . --no-deps
  fi
  done_with sources "$sources"
}

build() {
  PATH=$PWD/$venv/bin:$PATH CMAKE_GENERATOR=Ninja CMAKE_BUILD_PARALLEL_LEVEL=$jobs \
    quietly "$1" pip install -c constraints.txt --no-build-isolation --editable "${@:2}"
}

# beside SET FOLDER WHAT: installs a set into a folder of its own in .venv, for the tests that put it on their path.
beside() {
  local want
  want=$(digest "requirements/$1.lock")
  fresh "$1" "$want" && return
  say "installing $3"
  locked "$1" "$1" -- --upgrade --target "$venv/$2"
  done_with "$1" "$want"
}

case $purpose in build) extra= ;; fuzz) extra=test ;; *) extra=$purpose ;; esac
make_venv
prepare_system
install_torch
install_outcrop "$extra"
if [ "$purpose" = test ]; then
  # Where Triton can be imported, torch imports it whenever its compiler is, which costs each of the many processes that
  # tests start half a second.
  beside triton beside "triton for the tests of its kernels (160 MB)"
  # Tests need of OGB nothing that is not there: it would ask for scikit-learn, and for what looks for its updates.
  beside ogb beside-ogb "ogb for the tests that compare with it"
  beside moto beside-s3 "moto, an S3 server, for the tests of object stores (115 MB)"
  beside ray beside-ray "Ray, for the tests of clusters (260 MB)"
  beside kubernetes beside-kubernetes "the classes of the Kubeflow trainer, for the tests of manifests (21 MB)"
  # It gives a process another time of day.
  beside faketime beside-faketime "libfaketime, for the test of clocks"
fi
if [ "$purpose" = fuzz ]; then
  beside atheris beside-atheris "atheris, which fuzzes what is written in Python"
fi

#!/usr/bin/env bash
# Prepares .venv for one purpose: scripts/setup.sh build|test|lint|bench. Safe to repeat: what is already there and
# unchanged is left alone (stamps in .venv/.stamps hold a digest of what each step was made from).
# PYTHON names the interpreter; OUTCROP_PIP_ARGS is passed to pip, for example
#   OUTCROP_PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"   (torch without its CUDA libraries)
source "$(dirname "$0")/common.sh"
source scripts/system.sh

purpose=${1:-build}
case $purpose in build | test | lint | bench) ;; *) die "unknown purpose '$purpose': build, test, lint or bench" ;; esac
stamps=$venv/.stamps

fresh() { [ "$(cat "$stamps/$1" 2>/dev/null)" = "$2" ]; }   # fresh STEP DIGEST
done_with() { mkdir -p "$stamps" && printf '%s\n' "$2" >"$stamps/$1"; }

pip() {
  # shellcheck disable=SC2086 — OUTCROP_PIP_ARGS is a list of words
  PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip "$1" ${OUTCROP_PIP_ARGS:-} "${@:2}"
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
  dependencies=$(digest pyproject.toml constraints.txt)
  sources=$(digest CMakeLists.txt pyproject.toml src/core src/bindings src/outcrop/device/kernels)-$(have_uring && echo uring || echo pread)-$(packages)
  if ! fresh "$name" "$dependencies"; then
    say "installing build tools and dependencies${extra:+ for $extra} (under a minute)"
    quietly tools pip install 'scikit-build-core>=0.10' 'nanobind>=2.4' cmake ninja
    say "building and installing outcrop (about half a minute)"
    build "outcrop" ".${extra:+[$extra]}"
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

# Triton lies beside the environment, for the tests that put it on their path: where it can be imported, torch imports it
# whenever its compiler is, which costs each of the many processes that tests start half a second.
install_triton() {
  fresh triton 1 && return
  say "installing triton for the tests of its kernels (160 MB)"
  quietly triton pip install --no-deps --upgrade --target "$venv/beside" 'triton>=3.5'
  done_with triton 1
}

# The package of the Open Graph Benchmark lies in a folder of its own, with six, for the tests that compare with what it
# reads. Those need nothing else that is not there: it would ask for scikit-learn, and for what looks for its updates.
install_ogb() {
  fresh ogb 1 && return
  say "installing ogb for the tests that compare with it"
  quietly ogb pip install --no-deps --upgrade --target "$venv/beside-ogb" 'ogb==1.3.6' 'six>=1.12'
  done_with ogb 1
}

# A server of S3 for the tests of object stores: they start it as a process of its own.
install_moto() {
  fresh moto 1 && return
  say "installing moto, an S3 server, for the tests of object stores (115 MB)"
  quietly moto pip install --upgrade --target "$venv/beside-s3" 'moto[s3]==5.2.5' 'flask>=3' 'flask-cors>=4'
  done_with moto 1
}

# Ray for the tests of preparing on a cluster, which they start as processes of its own.
install_ray() {
  fresh ray 1 && return
  say "installing Ray, for the tests of clusters (260 MB)"
  quietly ray pip install --upgrade --target "$venv/beside-ray" 'ray==2.60.0'
  done_with ray 1
}

# What Kubernetes, JobSet and the Kubeflow trainer say that manifests may have, as classes.
install_kubernetes() {
  fresh kubernetes 1 && return
  say "installing the classes of the Kubeflow trainer, for the tests of manifests (21 MB)"
  quietly kubernetes pip install --upgrade --target "$venv/beside-kubernetes" 'kubeflow-trainer-api==2.3.0'
  done_with kubernetes 1
}

# What gives a process another time of day, for the test of machines whose clocks differ.
install_faketime() {
  fresh faketime 1 && return
  say "installing libfaketime, for the test of clocks"
  quietly faketime pip install --no-deps --upgrade --target "$venv/beside-faketime" 'libfaketime==3.0.1'
  done_with faketime 1
}

case $purpose in build) extra= ;; *) extra=$purpose ;; esac
make_venv
prepare_system
install_torch
install_outcrop "$extra"
if [ "$purpose" = test ]; then
  install_triton
  install_ogb
  install_moto
  install_ray
  install_kubernetes
  install_faketime
fi

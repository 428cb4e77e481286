#!/usr/bin/env bash
# The tests that need a CUDA device, on a machine that may have no network: scripts/gpu-check.sh [OUTPUT FOLDER]
# Uses the torch that is there (PYTHON names another interpreter), builds the C++ core in place, and runs
# - `pytest -m gpu --require=gpu`, the kernels among it once more under compute-sanitizer where that is installed:
#   gpu-check.json, sanitizer-*.txt;
# - `outcrop bench gpu`: gpu.json. OUTCROP_GPU_NODES makes its graph smaller or larger.
# All go to the output folder (benchmarks/results/gpu by default).
# Python packages that are missing can be put as wheels into .whl/ (or the folder that OUTCROP_WHEELS names).
out=${1:-benchmarks/results/gpu}
case $out in /*) ;; *) out=$PWD/$out ;; esac
source "$(dirname "$0")/common.sh"

site=$PWD/build/gpu/site
wheels=${OUTCROP_WHEELS:-.whl}
export PYTHONPATH=$PWD/src:$site PATH=$site/bin:$PATH
mkdir -p "$site" "$out"

python=
for candidate in ${PYTHON:-python3 "$PWD/$venv/bin/python"}; do
  if "$candidate" -c 'import torch' 2>/dev/null; then python=$(command -v "$candidate") && break; fi
done
[ -n "$python" ] || die "no torch in ${PYTHON:-python3 or $venv}: name a Python that has it, PYTHON=/path/to/python"
"$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
  die "no CUDA device: $("$python" -c 'import torch; print("torch", torch.__version__, "built for CUDA", torch.version.cuda)') \
sees none. Run this on a machine with an NVIDIA GPU and its driver, with a torch built for CUDA."

if compgen -G "$wheels/*.whl" >/dev/null; then
  say "installing the wheels of $wheels into $site"
  quietly gpu-wheels "$python" -m pip install --no-index --no-deps --no-compile --upgrade --target "$site" "$wheels"/*.whl
fi
missing=
for module in nanobind numpy pytest hypothesis typer rich pyarrow safetensors torch_geometric cuda.core triton; do
  "$python" -c "import $module" 2>/dev/null || missing+=" $module"
done
command -v cmake >/dev/null || missing+=" cmake"
[ -z "$missing" ] || die "missing on this machine:$missing. Where there is no network, download them as wheels elsewhere \
(pip download --no-deps --only-binary=:all: -d $wheels$missing) and run this again."

say "building the C++ core (about half a minute)"
quietly gpu-configure cmake -S . -B build/gpu/cmake -DCMAKE_BUILD_TYPE=Release \
  -DPython_EXECUTABLE="$python" $(command -v ninja >/dev/null && echo -G Ninja)
quietly gpu-build cmake --build build/gpu/cmake --parallel "$jobs"

say "running the tests marked gpu"
report=$PWD/$reports/py-gpu.xml
rm -f "$report"
# pytest-timeout may be absent here: its setting is then unknown, which is an error elsewhere.
start=$SECONDS
"$python" -m pytest -o addopts="--strict-markers --import-mode=importlib -ra" -W ignore::pytest.PytestConfigWarning \
  -m gpu --require=gpu --junitxml "$report" && status=0 || status=$?
"$python" scripts/gpu_record.py "$report" "$out/gpu-check.json" --status "$status" --seconds $((SECONDS - start))

if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    say "running the kernels under compute-sanitizer ($tool)"
    OUTCROP_GPU_TESTS=cuda PYTHONPATH=tests/device:tests:$PYTHONPATH compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$python" -m pytest -q -o addopts="--import-mode=importlib" -W ignore::pytest.PytestConfigWarning -p no:cacheprovider -o timeout=900 \
      tests/device/test_tensor.py tests/device/test_training.py \
      -k "index_of_the_gpu or gather_of_nothing or (gather_equals and dtype1) or every_level" 2>&1 | tee "$out/sanitizer-$tool.txt" | tail -3 || status=1
  done
else
  say "compute-sanitizer is not installed: the kernels run without it"
fi

say "measuring (outcrop bench gpu, a few minutes)"
"$python" -m outcrop bench gpu --folder build/gpu/bench --nodes "${OUTCROP_GPU_NODES:-1000000}" --rounds 5 \
  --json "$out/gpu.json" || status=1
exit "$status"

#!/bin/bash
# Two machines, played by two network namespaces of this one: prepares on a Ray cluster of both, brings each the part that
# it trains with, trains on both, and compares files, losses and parameters with what one machine alone makes.
#
#     pip install 'outcrop[ray]' && outcrop generate my.oc --nodes 20000 --edges 200000
#     sudo env PATH=$PATH examples/two_machines.sh my.oc work
#
# Each machine has a folder /machine of its own; the graph and the folder `shared` are seen by both.
set -euo pipefail
graph=$(realpath "$1") work=$(mkdir -p "$2" && realpath "$2")
options=(--fanouts 10,10 --batch-size 256 --epochs 3 --memory 64MiB --parts 2)
learning=(--epochs 3 --accumulate 2 --dropout 0.3 --trace-losses --quiet)
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=wire RAY_USAGE_STATS_ENABLED=0 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
RAY_AUTH_TOKEN=$(od -An -N 32 -tx1 /dev/urandom | tr -d ' \n') # machines of a cluster of Ray 2.60 show it to each other
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN

on() { # on MACHINE COMMAND...: runs it there
  # shellcheck disable=SC2016
  ip netns exec "outcrop-$1" sh -c 'mkdir -p "$0" && mount --bind "$0" /machine && exec "$@"' "$work/disk$1" "${@:2}"
}
leave() {
  for machine in 0 1; do
    ip netns pids "outcrop-$machine" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
    ip netns del "outcrop-$machine" 2>/dev/null || true
  done
  rmdir /machine 2>/dev/null || true
}
trap leave EXIT
leave
mkdir -p /machine "$work/shared"
for machine in 0 1; do ip netns add "outcrop-$machine"; done
ip link add wire netns outcrop-0 type veth peer name wire netns outcrop-1
for machine in 0 1; do
  ip -n "outcrop-$machine" link set lo up
  ip -n "outcrop-$machine" address add "10.77.0.$((machine + 1))/24" dev wire
  ip -n "outcrop-$machine" link set wire up
done

echo "preparing on a Ray cluster of two machines"
ray=(python -m ray.scripts.scripts start --num-cpus 1 --object-store-memory 100000000)
on 0 "${ray[@]}" --head --node-ip-address 10.77.0.1 --port 6379 --include-dashboard false >"$work/ray.log"
on 1 "${ray[@]}" --address 10.77.0.1:6379 --node-ip-address 10.77.0.2 >>"$work/ray.log"
on 0 outcrop prepare "$graph" "$work/shared/my.run" "${options[@]}" --ray 10.77.0.1:6379 --quiet
outcrop upload "$work/shared/my.run" "file://$work/shared/store" --quiet

echo "bringing each machine its part, and training on both"
for machine in 0 1; do
  on "$machine" outcrop fetch "file://$work/shared/store" /machine/my.run --graph "$graph" --parts "$machine" --quiet
  on "$machine" torchrun --nnodes 2 --node-rank "$machine" --nproc-per-node 1 --master-addr 10.77.0.1 --master-port 29500 \
    -m outcrop -- train "$graph" --run /machine/my.run "${learning[@]}" --checkpoint "$work/shared/checkpoint" \
    --json "$work/shared/several.json" >"$work/train$machine.log" 2>&1 &
  trained[machine]=$!
done
for machine in 0 1; do
  wait "${trained[machine]}" || { cat "$work/train$machine.log" && exit 1; }
done

echo "the same on one machine"
outcrop prepare "$graph" "$work/one.run" "${options[@]}" --quiet
outcrop train "$graph" --run "$work/one.run" "${learning[@]}" --checkpoint "$work/one" --json "$work/one.json"
for stage in sample plan pack; do diff -r "$work/one.run/$stage" "$work/shared/my.run/$stage"; done
python - "$work" <<'EOF'
import json, sys
import outcrop as oc

work = sys.argv[1]
one, several = (json.load(open(f"{work}/{name}.json")) for name in ("one", "shared/several"))
for what in ("batch_losses", "test_accuracy"):
    assert one[what] == several[what], what
ours, theirs = (oc.load_model(f"{work}/{name}").state_dict() for name in ("one", "shared/checkpoint"))
assert ours.keys() == theirs.keys() and all(value.equal(theirs[name]) for name, value in ours.items())
print(f"equal: every file, {len(one['batch_losses'])} losses, {len(ours)} tensors, test accuracy {one['test_accuracy']:.4f}")
EOF

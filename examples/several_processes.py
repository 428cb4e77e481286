"""Trains on several processes, or machines, with DistributedDataParallel: the same weights for every number of them.

    outcrop prepare cora.oc cora.run --fanouts 5,5 --batch-size 25
    torchrun --nproc-per-node=2 examples/several_processes.py cora.run weights.pt

Each process loads its share of the batches. Gradients are added in the order of the batches, so that the weights are
those of one process that takes as many batches a step (here 2): python examples/several_processes.py cora.run one.pt 2
"""

import os
import sys

import torch
import torch.nn.functional as F
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

import outcrop as oc

several = "WORLD_SIZE" in os.environ  # started by torchrun
if several:
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
run = oc.open_run(sys.argv[1])
batches_of_step = 1 if several or len(sys.argv) < 4 else int(sys.argv[3])

torch.manual_seed(0)
model = GraphSAGE(run.graph.feature_dim, 64, num_layers=2, out_channels=run.graph.num_classes)
trained = model
if several:
    trained = DistributedDataParallel(model)
    trained.register_comm_hook(None, oc.ordered_hook)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

loader = run.loader(uneven="drop")  # of this process's batches: rank and world are those of the group
for epoch in range(4):
    pending = 0
    optimizer.zero_grad()
    for batch in loader:
        out = trained(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        pending += 1
        del batch
        if pending == batches_of_step:
            for parameter in model.parameters():
                parameter.grad /= pending
            optimizer.step()
            optimizer.zero_grad()
            pending = 0
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

if not several or distributed.get_rank() == 0:
    torch.save(model.state_dict(), sys.argv[2])
if several:
    distributed.destroy_process_group()

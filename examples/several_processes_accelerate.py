"""Trains on several processes, or machines, with Accelerate: the same weights for every number of them.

    outcrop prepare cora.oc cora.run --fanouts 5,5 --batch-size 25
    torchrun --nproc-per-node=2 examples/several_processes_accelerate.py cora.run weights.pt

The loader is not given to prepare(): run.loader() divides the batches among the processes itself.
"""

import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch_geometric.nn import GraphSAGE

import outcrop as oc

accelerator = Accelerator(cpu=not torch.cuda.is_available())
run = oc.open_run(sys.argv[1])
torch.manual_seed(0)
model = GraphSAGE(run.graph.feature_dim, 64, num_layers=2, out_channels=run.graph.num_classes)
model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
if accelerator.num_processes > 1:
    model.register_comm_hook(None, oc.ordered_hook)

loader = run.loader(uneven="drop")
for epoch in range(4):
    for batch in loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        del batch
    accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(model).state_dict(), sys.argv[2])
accelerator.end_training()

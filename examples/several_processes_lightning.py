"""Trains on several processes, or machines, with Lightning: the same weights for every number of them.

    outcrop prepare cora.oc cora.run --fanouts 5,5 --batch-size 25
    torchrun --nproc-per-node=2 examples/several_processes_lightning.py cora.run weights.pt

Lightning makes the process group; run.loader() asks it for rank and world, and so divides the batches itself.
"""

import os
import sys

import lightning
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

import outcrop as oc


class Module(lightning.LightningModule):
    def __init__(self, run):
        super().__init__()
        torch.manual_seed(0)
        self.run = run
        self.model = GraphSAGE(run.graph.feature_dim, 64, num_layers=2, out_channels=run.graph.num_classes)

    def train_dataloader(self):
        return self.run.loader(uneven="drop")

    def on_train_start(self):
        wrapped = self.trainer.strategy.model
        if isinstance(wrapped, DistributedDataParallel):  # Lightning itself takes a hook on GPUs alone
            wrapped.register_comm_hook(None, oc.ordered_hook)

    def training_step(self, batch, number):
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        return F.cross_entropy(out, batch.y[: batch.batch_size])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


several = "WORLD_SIZE" in os.environ  # started by torchrun
module = Module(oc.open_run(sys.argv[1]))
trainer = lightning.Trainer(
    max_epochs=4,
    accelerator="auto" if torch.cuda.is_available() else "cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]) if several else 1,
    num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]) if several else 1,
    strategy="ddp" if several else "auto",
    use_distributed_sampler=False,  # the loader is divided already
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module)
if trainer.is_global_zero:
    torch.save(module.model.state_dict(), sys.argv[2])

"""Trains with Ray Train: each worker calls outcrop.train, and what is learned is what one process learns.

    outcrop prepare my.oc my.run --fanouts 5,5 --batch-size 25
    python examples/several_processes_ray.py my.oc my.run checkpoint 2

Ray starts the workers, on all machines of its cluster, makes their process group, and starts them again where one is
lost: they go on from the checkpoint. Graph, run and checkpoint are seen by all of them under the same paths.
"""

import sys
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

import outcrop as oc


def work(paths: dict[str, str]) -> None:
    report = oc.train(
        paths["graph"],
        run=paths["run"],
        model=oc.ModelConfig("sage", hidden=32, dropout=0.3),
        training=oc.TrainConfig(epochs=3, accumulate=2),
        checkpoint=paths["checkpoint"],
        observer=oc.Observer(progress=False),
    )
    if ray.train.get_context().get_world_rank() == 0:
        print(f"test accuracy {report.test_accuracy:.4f}")


if __name__ == "__main__":
    graph, run, checkpoint = (str(Path(argument).absolute()) for argument in sys.argv[1:4])
    ray.init(include_dashboard=False)
    trainer = TorchTrainer(
        work,
        train_loop_config={"graph": graph, "run": run, "checkpoint": checkpoint},
        torch_config=TorchConfig(backend="gloo"),  # nccl where each worker has a GPU
        scaling_config=ScalingConfig(num_workers=int(sys.argv[4])),
        run_config=RunConfig(storage_path=f"{checkpoint}.ray", failure_config=FailureConfig(max_failures=2)),
    )
    trainer.fit()

"""What a training did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outcrop.config import format_use


@dataclass
class TrainReport:
    """Says what :func:`outcrop.train` did; ``as_dict`` is what ``--json`` writes.

    Attributes:
        distinct_epochs: Epochs trained on batches of their own; the others replayed theirs.
        prepared_epochs: Epochs prepared at a time; None: batches were drawn as they were wanted. Where an epoch was
            prepared in parts, ``pools`` say which ``batches`` each had.
        chosen: What was chosen for the user, and why: lines.
        choice_seconds: Seconds that choosing mode and limits took, before anything was prepared.
        model: The trained :class:`outcrop.nn.models.Model` with the parameters of ``best_epoch``, in eval mode, on the
            device of the training. Not in ``as_dict``, where ``model`` is ``model_name``.
        model_file: The checkpoint of this model; None without a checkpoint folder.
        resumed_from: Epochs that the checkpoint had behind it; None where training began anew.
        trained_epochs: Epochs that this call trained; 0 where the checkpoint had them all.
        metric: What the best epoch was chosen by; ``valid_metric`` of each epoch and ``test_metric`` are its values.
        test_accuracy: None without test nodes, and for labels that are no classes.
        stopped_early: Whether ``patience`` or a callback ended the training before its last epoch.
        kept_folder: Folder beside the graph of what was prepared and stays, for the next training with the same
            options: a run, or the last of the sample pools. It may be deleted. None where nothing stays.
        ranks: Where several processes trained: ``world``, ``accumulate`` (batches of a step) and ``peak_host_bytes``
            (of each). ``peak_host_bytes`` of the report is what those of a machine held together.
    """

    mode: str
    model_name: str
    device: str
    epochs: list[dict[str, Any]]
    best_epoch: int
    test_accuracy: float | None
    batch_losses: list[float]
    seconds: float
    peak_host_bytes: int
    peak_device_bytes: int
    peak_device_by_tag: dict[str, int]
    peak_by_tag: dict[str, int]
    peak_process_bytes: int
    budget: dict[str, int | None]
    io_backend: str
    prepare: dict[str, Any] = field(default_factory=dict)
    pools: list[dict[str, Any]] = field(default_factory=list)
    spooled_epochs: int = 0
    cache_strategy: str = "auto"
    distinct_epochs: int = 0
    prepared_epochs: int | None = None
    chosen: str = ""
    choice_seconds: float = 0.0
    model_file: str | None = None
    resumed_from: int | None = None
    trained_epochs: int = 0
    stopped_early: bool = False
    metric: str = "accuracy"
    test_metric: float | None = None
    kept_folder: str | None = None
    ranks: dict[str, Any] = field(default_factory=dict)
    model: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        name = self.metric.replace("_", " ")
        tested = f"no test {name}" if self.test_metric is None else f"test {name} {self.test_metric:.4f}"
        lines = [f"{self.model_name} on {self.device}, mode {self.mode}: {tested}"]
        if self.epochs:
            loss = self.epochs[-1]["loss"]
            count = "1 epoch" if len(self.epochs) == 1 else f"{len(self.epochs)} epochs"
            lines.append(f"{count}, best {self.best_epoch}, last loss {loss:.4f}")
        memory = format_use(self.peak_host_bytes, self.budget.get("memory"))
        lines.append(f"{self.seconds:.1f} s, peak memory {memory}")
        if self.kept_folder is not None:
            lines.append(f"prepared batches stay in {self.kept_folder}, which may be deleted")
        return f"{type(self).__name__}({'; '.join(lines)})"

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields but ``model``, whose name has its place."""
        names = {"model_name": "model"}
        return {names.get(name, name): value for name, value in vars(self).items() if name != "model"}

"""Checkpoints of training: one safetensors file each, replaced atomically, checked when read. No pickle.

Folder: ``last.safetensors`` holds everything that training goes on from; ``best.safetensors`` the model of the best
epoch, for use. ``last`` also holds the best model, so it alone is the truth: it is written first, and where a crash
left ``best`` behind it, resuming writes ``best`` again and :func:`load_best` takes the model from ``last``.
Tensors: ``model.<name>``, ``best.<name>``, ``optimizer.<parameter number>.<name>``. Header entry ``outcrop``: JSON
with format, version, kind (``last`` or ``best``), :class:`outcrop.nn.checkpoint_meta.Meta` and the SHA-256 of all
tensors. Version 1 had no kind, and inputs as text.
Dropout is keyed by (seed, epoch, batch) and the sampler by the same, so the seed and the number of finished epochs are
the whole random state.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from outcrop.config import ModelConfig, TrainConfig
from outcrop.config.places import is_uri
from outcrop.device import resolve
from outcrop.errors import FormatError, IoError, OutcropError
from outcrop.nn.checkpoint_meta import BEST, LAST, Meta
from outcrop.nn.models import Model, build_model
from outcrop.nn.schema import GraphSchema
from outcrop.nn.typed import TypedModel
from outcrop.store import identity
from outcrop.store.mirror import fetched
from outcrop.store.tensors import (
    AGAIN,
    State,
    digest,
    header_of,
    open_tensors,
    read_tensors,
    refuse,
    write_tensors,
)

FORMAT, VERSION = "outcrop.checkpoint", 2
_OLDEST = 1
_LATER = ("updates", "partial", "processors")  # fields of Meta that the first version did not have


@dataclass(frozen=True)
class Checkpoint:
    """Holds states as on the CPU.

    ``optimizer`` maps "<parameter number>.<name>"; it and ``best`` are empty in ``best``.
    """

    meta: Meta
    model: State
    best: State = field(default_factory=dict)
    optimizer: State = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Returns ``last`` or ``best``: what the file is for."""
        return "last" if self.best or self.optimizer else "best"


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Replaces ``path`` atomically; its folder is made where needed."""
    tensors = {
        f"{part}.{name}": value
        for part in ("model", "best", "optimizer")
        for name, value in getattr(checkpoint, part).items()
    }
    write_tensors(path, FORMAT, VERSION, tensors, {"kind": checkpoint.kind, **asdict(checkpoint.meta)})


def read(path: Path, kind: str | None = None) -> Checkpoint:
    """Reads and checks a checkpoint.

    Args:
        kind: What it must be, ``last`` or ``best``; None: either.

    Raises:
        FormatError: Missing, foreign, truncated, of another version or of another kind.
        ChecksumError: The tensors differ from those written.
    """
    tensors, header = read_tensors(path, FORMAT, VERSION, oldest=_OLDEST)
    parts: dict[str, State] = {"model": {}, "best": {}, "optimizer": {}}
    try:
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = value
        names = [name for name in Meta.__dataclass_fields__ if name in header or name not in _LATER]
        meta = Meta(**{name: header[name] for name in names})
        if header["version"] == 1:
            meta = replace(meta, inputs=identity.inputs_of_version_1(meta.inputs))
        _check_types(meta)
    except (KeyError, ValueError, TypeError) as error:
        raise FormatError(f"{path} lacks or garbles a field ({error}): {AGAIN}") from None
    checkpoint = Checkpoint(meta, **parts)
    there = header.get("kind", checkpoint.kind)
    if kind is not None and there != kind:
        raise FormatError(
            f"{path} is a checkpoint of kind {there!r} under the name of {kind!r}: give the files in {path.parent} "
            "their own names again, or train again"
        )
    return checkpoint


def _check_types(meta: Meta) -> None:
    """Raises TypeError where a field of the header is of another type than it was written with."""
    for name, kind in (
        ("epochs_done", int),
        ("best_epoch", int),
        ("config", dict),
        ("inputs", dict),
        ("history", list),
        ("batch_losses", list),
        ("updates", int),
        ("partial", dict),
        ("processors", list),
    ):
        if not isinstance(getattr(meta, name), kind):
            raise TypeError(f"{name} is no {kind.__name__}")


def is_best_of(last: Checkpoint, best: Checkpoint) -> bool:
    """Tells whether ``best`` has the best model that ``last`` knows."""
    return best.meta.best_epoch == last.meta.best_epoch and digest(best.model) == digest(last.best)


def renew_best(folder: Path, last: Checkpoint) -> None:
    """Writes ``best.safetensors`` again where it is missing, damaged or not what ``last`` holds.

    A crash between the two files of a checkpoint leaves it so.
    """
    if not last.best:  # no epoch was finished
        return
    try:
        same = is_best_of(last, read(folder / BEST, "best"))
    except OutcropError:
        same = False
    if not same:
        write(folder / BEST, Checkpoint(last.meta, last.best))


def require_same(path: Path, meta: Meta, config: dict[str, Any], inputs: dict[str, Any]) -> None:
    """Checks that a checkpoint belongs to this training (:mod:`outcrop.store.identity`).

    Raises:
        ArgumentError: Names every field that differs.
    """
    have, wanted = {**meta.config, **_named(meta.inputs)}, {**config, **_named(inputs)}
    defaults = identity.training_fields(ModelConfig(layers=2), TrainConfig())
    defaults = {name: value for name, value in defaults.items() if name in config}
    differing = identity.differences(have, wanted, meta.epochs_begun, defaults)
    refuse(path, differing, f"checkpoint=Checkpoints({str(path.parent)!r}, resume=False)")


def _named(inputs: dict[str, Any]) -> dict[str, Any]:
    return {f"{name} digest" if isinstance(value, str) else name: value for name, value in inputs.items()}


def load_into(path: Path, model: torch.nn.Module, state: State) -> None:
    """Gives ``model`` the parameters in ``state``.

    Raises:
        FormatError: They are those of another architecture.
    """
    _require_shapes(path, model, state)
    model.load_state_dict(state)


def _require_shapes(path: Path, model: torch.nn.Module, state: State) -> None:
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in state.items()}
    if own != found:
        wrong = sorted(name for name in own.keys() | found.keys() if own.get(name) != found.get(name))
        raise FormatError(
            f"{path} holds another model: {', '.join(wrong)} are missing, extra or of another shape"
        )


def load_model(folder: str | Path, device: str = "cpu") -> Model | TypedModel:
    """Loads the best model of the training whose checkpoints are in ``folder``, in eval mode.

    Args:
        folder: What ``outcrop.train`` was given as ``checkpoint``, a folder or a URI.
        device: cpu, cuda or cuda:N.

    Raises:
        FormatError: No checkpoint there, or it cannot be read.
    """
    return load_best(folder, device)[0]


def load_best(folder: str | Path, device: str = "cpu") -> tuple[Model | TypedModel, Meta]:
    """Does what :func:`load_model` does, and returns what the checkpoint says about itself, too."""
    if is_uri(folder):
        with fetched(str(folder), BEST, LAST) as there:
            return _load_best(there, device)
    return _load_best(Path(folder), device)


def _built(path: Path, checkpoint: Checkpoint) -> Model | TypedModel:
    """Builds the model of a checkpoint; its parameters are not set yet. Raises FormatError where it names none."""
    try:
        return _build(checkpoint)
    except OutcropError as error:
        raise FormatError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FormatError(
            f"{path} lacks or garbles a field of its configuration ({error}): {AGAIN}"
        ) from None


def _load_best(folder: Path, device: str) -> tuple[Model | TypedModel, Meta]:
    path, best = _best(folder)
    # First without memory: a header may speak of a model that is not the one in the file, and larger than any.
    with torch.device("meta"):
        _require_shapes(path, _built(path, best), best.model)
    model = _built(path, best)
    load_into(path, model, best.model)
    return model.to(resolve(device)).eval(), best.meta


def _build(found: Checkpoint) -> Model | TypedModel:
    config = found.meta.config
    if not 0 < config["layers"] <= len(found.model):  # each has a tensor at least
        raise ValueError(f"{config['layers']} layers in {len(found.model)} tensors")
    rows = (config["in_dim"], config["edge_dim"]) if "edge_dim" in config else config.get("in_dim")
    inputs = GraphSchema.from_stored(config["schema"]) if "schema" in config else rows
    if inputs is None:
        raise KeyError("in_dim")
    model = build_model(
        config["model"],
        inputs,
        config["hidden"],
        config["num_classes"],
        config["layers"],
        heads=config["heads"],
        dropout=config["dropout"],
    )
    if isinstance(model, Model):
        model.edge_weights = bool(config.get("edge_weights", False))
    return model


def _best(folder: Path) -> tuple[Path, Checkpoint]:
    """Returns the best model and the file that it comes from: ``last`` where a crash left ``best`` missing or behind
    it.
    """
    if folder.is_file():
        raise FormatError(f"{folder} is a file: name the folder that it is in, {folder.parent}")
    last, best = folder / LAST, folder / BEST
    found = read(best, "best") if best.is_file() or not last.is_file() else None
    if found is not None and not (last.is_file() and _epochs_done(last) > found.meta.epochs_done):
        return best, found
    whole = read(last, "last")
    if not whole.best:
        raise FormatError(f"{last} is of a training that finished no epoch yet: train on")
    return last, Checkpoint(whole.meta, whole.best)


def _epochs_done(path: Path) -> int:
    """Returns finished epochs by the header alone; -1 where it cannot be told: the other file is all there is."""
    try:
        return int(_header(path)["epochs_done"])
    except (ValueError, KeyError, TypeError):
        return -1


def processors_of(folder: Path) -> list[list[Any]]:
    """Returns what computed the last checkpoint in ``folder``, by its header alone; empty where it cannot be told."""
    found = _header(folder / LAST).get("processors")
    if not isinstance(found, list) or not all(isinstance(one, list) and len(one) == 2 for one in found):
        return []
    return found


def _header(path: Path) -> dict[str, Any]:
    """Reads the header of a checkpoint without its tensors; empty where it cannot be read."""
    try:
        with open_tensors(path) as file:
            found = header_of(path, (file.metadata() or {})["outcrop"])
    except IoError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}

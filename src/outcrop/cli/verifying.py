"""What ``outcrop verify`` reads: an artifact, and folders that hold several things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.run import RUN_FILE
from outcrop.store.verify import verify_artifact

_STAGES = ("sample", "plan", "pack")
_BUCKETS = "buckets"
_KINDS = {"last.safetensors": "last", "best.safetensors": "best"}


def verify_all(path: Path, runtime: Runtime) -> dict[str, dict[str, Any]]:
    """Reads every byte of what is at ``path`` that has a checksum: a graph, a run, an embedding run, a checkpoint or
    its folder.

    Returns:
        Artifact or file -> ``{"format", "arrays", "bytes"}``: what was read and found right.

    Raises:
        FormatError: Nothing there is Outcrop's, a file is missing or of the wrong size, or what it says contradicts
            itself.
        ChecksumError: Bytes differ from those that were written.
    """
    if path.is_file() and path.suffix == ".safetensors":
        return {str(path): _verify_checkpoint(path)}
    if (path / RUN_FILE).is_file():
        return _verify_run(path, runtime)
    if manifests.exists(path / _BUCKETS):
        return _verify_embeddings(path, runtime)
    if any((path / name).is_file() for name in _KINDS) and not manifests.exists(path):
        return _verify_checkpoints(path)
    return {str(path): verify_artifact(path, runtime)}


def _verify_run(path: Path, runtime: Runtime) -> dict[str, dict[str, Any]]:
    """Verifies the stages up to the last one that is there: a stage gets its name when it is finished."""
    finished = [number for number, stage in enumerate(_STAGES, 1) if (path / stage).exists()]
    if not finished:
        raise FormatError(f"{path} is a run of which no stage is finished yet: outcrop prepare again goes on")
    return {str(path / stage): verify_artifact(path / stage, runtime) for stage in _STAGES[: finished[-1]]}


def _verify_checkpoint(path: Path) -> dict[str, Any]:
    from outcrop.nn import checkpoint as checkpoints

    found = checkpoints.read(path, _KINDS.get(path.name))
    tensors = [one for part in (found.model, found.best, found.optimizer) for one in part.values()]
    return {"format": checkpoints.FORMAT, "arrays": len(tensors), "bytes": sum(one.nbytes for one in tensors)}


def _verify_checkpoints(folder: Path) -> dict[str, dict[str, Any]]:
    """Verifies both files, and that they belong together; the best model may also be there alone."""
    from outcrop.nn import checkpoint as checkpoints

    last, best = (folder / name for name in _KINDS)
    results = {str(file): _verify_checkpoint(file) for file in (last, best) if file.is_file()}
    if last.is_file() and not checkpoints.is_best_of(folder, checkpoints.read(last)):
        raise FormatError(
            f"{best} is missing, or has another model than the best that {last.name} knows: train again with the same "
            "arguments, which writes it"
        )
    return results


def _verify_embeddings(path: Path, runtime: Runtime) -> dict[str, dict[str, Any]]:
    """Verifies the sorted edges, and the vectors of the last checkpoint where there are any."""
    from outcrop.embed.checkpoint import CHECKPOINT, FOLDER, FORMAT
    from outcrop.embed.model import open_model

    results = {str(path / _BUCKETS): verify_artifact(path / _BUCKETS, runtime)}
    if (path / FOLDER / CHECKPOINT).is_file():
        model = open_model(path, runtime)
        try:
            sizes = [vectors.nbytes for _, vectors in model.slices()]
        finally:
            model.close()
        results[str(path / FOLDER)] = {"format": FORMAT, "arrays": len(sizes), "bytes": sum(sizes)}
    return results

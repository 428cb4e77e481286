"""What ``outcrop verify`` reads: an artifact, and folders that hold several things."""

from __future__ import annotations

import errno
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outcrop.cli.describing import BUCKETS
from outcrop.errors import FormatError, IoError
from outcrop.nn.checkpoint_meta import BEST, LAST
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import run as runs
from outcrop.store.lock import in_use
from outcrop.store.run import RUN_FILE
from outcrop.store.verify import verify_artifact

if TYPE_CHECKING:
    from outcrop.nn.checkpoint import Checkpoint


def verify_all(path: Path, runtime: Runtime) -> dict[str, dict[str, Any]]:
    """Reads every byte of what is at ``path`` that has a checksum: a graph, a run, an embedding run, a checkpoint or
    its folder.

    Returns:
        Artifact or file -> ``{"format", "arrays", "bytes"}``: what was read and found right.

    Raises:
        FormatError: Nothing there is Outcrop's, a file is missing or of the wrong size, or parts do not fit together.
        ChecksumError: Bytes differ from those that were written.
        IoError: A file cannot be read, or a training writes it meanwhile.
    """
    if path.is_file() and path.suffix == ".safetensors":
        return {str(path): _counted(_read(path))}
    if (path / RUN_FILE).is_file():
        return _verify_run(path, runtime)
    if manifests.exists(path / BUCKETS):
        return _verify_embeddings(path, runtime)
    if any((path / name).is_file() for name in (LAST, BEST)) and not manifests.exists(path):
        return _verify_checkpoints(path)
    return {str(path): verify_artifact(path, runtime)}


def _verify_run(path: Path, runtime: Runtime) -> dict[str, dict[str, Any]]:
    """Verifies the stages up to the last one that is there, and that each was made of those before: a stage gets its
    name when it is finished.
    """
    runs.read(path)
    there = [stage for stage in runs.STAGES if (path / stage).exists()]
    stages = runs.finished_stages(there, path, "outcrop prepare again goes on")
    results = {str(path / stage): verify_artifact(path / stage, runtime) for stage in stages}
    found = {stage: manifests.read_any(path / stage) for stage in stages}
    runs.check_made_of(found, path, "outcrop prepare, with the options of the run, makes it anew")
    return results


def _read(file: Path) -> Checkpoint:
    from outcrop.nn import checkpoint as checkpoints

    return checkpoints.read(file, {LAST: "last", BEST: "best"}.get(file.name))


def _counted(checkpoint: Checkpoint) -> dict[str, Any]:
    from outcrop.nn.checkpoint import FORMAT

    parts = (checkpoint.model, checkpoint.best, checkpoint.optimizer)
    tensors = [value for part in parts for value in part.values()]
    return {"format": FORMAT, "arrays": len(tensors), "bytes": sum(value.nbytes for value in tensors)}


def _verify_checkpoints(folder: Path) -> dict[str, dict[str, Any]]:
    """Verifies both files, and that they belong together; a best model may be there alone."""
    from outcrop.nn.checkpoint import is_best_of

    found = {name: _read(folder / name) for name in (LAST, BEST) if (folder / name).is_file()}
    last, best = found.get(LAST), found.get(BEST)
    if last is not None and last.best and not (best and is_best_of(last, best)):
        if in_use(folder):
            raise IoError(
                errno.EWOULDBLOCK,
                f"{folder} is in use: another process trains there and writes its files; run this again when it has "
                "ended",
            )
        raise FormatError(
            f"{folder / BEST} is missing, or has another model than the best that {LAST} holds, as after a crash "
            "between the two: train again with the same arguments, which writes it"
        )
    return {str(folder / name): _counted(one) for name, one in found.items()}


def _verify_embeddings(path: Path, runtime: Runtime) -> dict[str, dict[str, Any]]:
    """Verifies the sorted edges, and where there are any the vectors of the last checkpoint, and of the best epoch."""
    from outcrop.embed.checkpoint import CHECKPOINT, FOLDER, FORMAT
    from outcrop.embed.model import open_best, open_model
    from outcrop.embed.rankings import read

    results = {str(path / BUCKETS): verify_artifact(path / BUCKETS, runtime)}
    if not (path / FOLDER / CHECKPOINT).is_file():
        return results
    ranked = read(path)
    makers = [partial(open_model, path, runtime, "last")]
    if ranked is not None and ranked.best is not None:
        makers.append(partial(open_best, path, ranked, runtime))
    for make in makers:
        with closing(make()) as model:
            sizes = [vectors.nbytes for _, vectors in model.slices()]
            told = {"format": FORMAT, "arrays": len(sizes), "bytes": sum(sizes)}
            results[str(model.table.folder)] = told
    return results

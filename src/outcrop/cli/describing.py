"""What ``outcrop info`` says: of an artifact, and of folders that hold several things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from outcrop.errors import ChecksumError, FormatError, IoError
from outcrop.runtime import system
from outcrop.runtime.parsing import parse_json
from outcrop.store import manifest as manifests
from outcrop.store import run as runs
from outcrop.store.run import RUN_FILE, STAGES

BUCKETS = "buckets"
_TABLES = (".npy", ".parquet")
_NOT_TOLD = ("format", "version", "sha256", "header_sha256")  # told elsewhere, or checked
_CHECKPOINTS = ("last.safetensors", "best.safetensors", "tables/checkpoint.safetensors")


def describe_all(path: Path) -> list[dict[str, Any]]:
    """Describes what is at ``path``: a graph, a run, an embedding run, a checkpoint or its folder, or a file of
    predictions or vectors.

    Returns:
        ``{"path", "format", "version", "bytes", "attributes", "arrays", ...}`` of each part.

    Raises:
        FormatError: Nothing there is Outcrop's, or a part is torn.
    """
    from outcrop.store.verify import describe

    if not path.exists():
        raise FormatError(f"{path} does not exist")
    if path.is_file():
        return [_describe_table(path) if path.suffix in _TABLES else _describe_tensors(path)]
    if manifests.exists(path):
        return [describe(path)]
    parts = [path / name for name in (*STAGES, BUCKETS) if manifests.exists(path / name)]
    tensors = [path / name for name in _CHECKPOINTS if (path / name).is_file()]
    if not parts and not tensors and not (path / RUN_FILE).is_file():
        raise FormatError(
            f"{path} is nothing that Outcrop made: looked for manifest.json (graphs, knowledge graphs), {RUN_FILE} "
            f"(runs), {BUCKETS} (embedding runs) and {_CHECKPOINTS[0]} (checkpoints){manifests.how_to_import(path)}"
        )
    if not parts and not tensors:
        return [_describe_unfinished(path)]
    return [*map(describe, parts), *map(_describe_tensors, tensors)]


def _describe_unfinished(path: Path) -> dict[str, Any]:
    """Describes a run of which no stage is finished yet."""
    info = runs.read(path)
    return {
        "path": str(path),
        "format": "outcrop.run",
        "version": parse_json((path / RUN_FILE).read_bytes())["version"],
        "bytes": system.bytes_of_files(path),
        "attributes": {
            "graph": str(info.graph_path(path)),
            "stages": "none is finished: outcrop prepare again goes on",
        },
    }


def _describe_table(path: Path) -> dict[str, Any]:
    """Describes what infer or embed export wrote, from the header alone."""
    try:
        if path.suffix == ".npy":
            array = np.load(path, mmap_mode="r")
            columns = {path.stem: {"dtype": array.dtype.name, "shape": list(array.shape)}}
        else:
            import pyarrow.parquet as pq

            file = pq.ParquetFile(path)
            rows, schema = file.metadata.num_rows, file.schema_arrow
            columns = {one.name: {"dtype": str(one.type), "shape": [rows]} for one in schema}
    except (OSError, ValueError) as error:  # Arrow's are ValueError
        raise FormatError(f"{path} cannot be read as {path.suffix}: {error}") from None
    return {
        "path": str(path),
        "format": path.suffix[1:],
        "version": None,
        "bytes": path.stat().st_size,
        "attributes": {},
        "tensors": columns,
    }


def _describe_tensors(path: Path) -> dict[str, Any]:
    """Describes a file of tensors from the header alone."""
    from safetensors import SafetensorError

    from outcrop.store.tensors import header_of, open_tensors

    try:
        with open_tensors(path, "numpy") as file:
            header = header_of(path, (file.metadata() or {}).get("outcrop", "null"))
            shapes = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no dict
            arrays = {
                name: {"dtype": one.get_dtype(), "shape": list(one.get_shape())}
                for name, one in shapes.items()
            }
    except (IoError, ChecksumError):
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read as a checkpoint: {error}") from None
    if not isinstance(header, dict):
        header = {"format": "safetensors", "version": None}
    config = header.get("config")
    plain = {k: v for k, v in header.items() if isinstance(v, (int, float, str)) and k not in _NOT_TOLD}
    return {
        "path": str(path),
        "format": header.get("format"),
        "version": header.get("version"),
        "bytes": path.stat().st_size,
        "attributes": plain | (config if isinstance(config, dict) else {}) | _embeddings_of(header),
        "tensors": arrays,
    }


def _embeddings_of(header: dict[str, Any]) -> dict[str, Any]:
    """Returns what a checkpoint of embeddings says of the model, and the loss of its last whole epoch (None: none is
    whole) in place of the sum of the one that is under way; nothing of another file.
    """
    identity, records = header.get("identity"), header.get("records")
    if not (isinstance(identity, dict) and isinstance(records, list)):
        return {}
    last = records[-1] if records and isinstance(records[-1], dict) else {}
    return {"model": identity.get("model"), "dim": identity.get("dim"), "loss": last.get("loss")}

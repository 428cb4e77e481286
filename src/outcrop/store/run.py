"""A run: the folder that ``prepare`` makes, with one subfolder per stage and ``run.json``, which says of what."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from outcrop.config import PlanConfig, SampleConfig
from outcrop.errors import ArgumentError, FormatError
from outcrop.parsing import parse_json
from outcrop.store import manifest as manifests

RUN_FILE = "run.json"
_FORMAT, _VERSION = "outcrop.run", 1


@dataclass(frozen=True)
class RunInfo:
    """``graph``: path of the graph, relative to the run's folder; ``graph_digest``: what it held."""

    graph: str
    graph_digest: str
    sample: SampleConfig
    plan: PlanConfig

    def graph_path(self, folder: Path) -> Path:
        return (folder / self.graph).resolve()


def write(folder: Path, info: RunInfo) -> None:
    """Writes ``run.json`` unless it says the same already.

    Raises:
        ArgumentError: ``folder`` holds something else.
    """
    _check_free(folder)
    with manifests.naming_files(folder):
        folder.mkdir(parents=True, exist_ok=True)
    content = (
        json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(info)}, indent=1, sort_keys=True) + "\n"
    )
    path = folder / RUN_FILE
    if not path.is_file() or path.read_bytes() != content.encode():
        manifests.write_atomic(path, content.encode())


def _check_free(folder: Path) -> None:
    if not folder.exists() or (folder / RUN_FILE).is_file():
        return
    unfinished = manifests.temporary_file(folder / RUN_FILE)
    if not folder.is_dir() or any(found != unfinished for found in folder.iterdir()):
        raise ArgumentError(f"{folder} is in the way and no Outcrop run: remove it or choose another place")


def read(folder: Path) -> RunInfo:
    """Reads ``run.json``.

    Raises:
        FormatError: ``folder`` is no run, or of another version.
    """
    path = folder / RUN_FILE
    try:
        raw = parse_json(path.read_bytes())
        if (raw["format"], raw["version"]) != (_FORMAT, _VERSION):
            raise FormatError(
                f"{path} is {raw['format']!r} version {raw['version']}, not {_FORMAT} {_VERSION}"
            )
        sample, plan = raw["sample"], raw["plan"]
        return RunInfo(
            raw["graph"],
            raw["graph_digest"],
            SampleConfig(
                **{**sample, "fanouts": tuple(sample["fanouts"]), "splits": tuple(sample["splits"])}
            ),
            PlanConfig(**{**plan, "packed_splits": tuple(plan["packed_splits"])}),
        )
    except FileNotFoundError:
        raise FormatError(
            f"{folder} is no Outcrop run ({path.name} is missing): make one with outcrop prepare"
        ) from None
    except (KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} cannot be read as a run: {error}") from None

"""A run: the folder that ``prepare`` makes, with one subfolder per stage and ``run.json``, which says of what."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outcrop.config import PlanConfig, SampleConfig, exact_bytes
from outcrop.errors import ArgumentError, FormatError, OutcropError, naming_files
from outcrop.runtime.parsing import parse_json
from outcrop.store import manifest as manifests

RUN_FILE = "run.json"
STAGES = ("sample", "plan", "pack")  # folders of a run, each made of those before
_FORMAT, _VERSION = "outcrop.run", 1


@dataclass(frozen=True)
class RunInfo:
    """Says what a run was made of. ``graph``: path of the graph, relative to the run's folder; ``graph_digest``: what
    it held.
    """

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
    with naming_files(folder):
        folder.mkdir(parents=True, exist_ok=True)
    fields = {**asdict(info), "sample": info.sample.as_stored(), "plan": info.plan.as_stored()}
    content = json.dumps({"format": _FORMAT, "version": _VERSION, **fields}, indent=1, sort_keys=True) + "\n"
    path = folder / RUN_FILE
    if not path.is_file() or path.read_bytes() != content.encode():
        manifests.write_atomic(path, content.encode())
    else:  # one that was to say something else may have been killed meanwhile
        with naming_files(folder):
            manifests.temporary_file(path).unlink(missing_ok=True)


def finished_stages(there: Collection[str], place: object, remedy: str) -> tuple[str, ...]:
    """Returns the stages that a run must have of which ``there`` are: up to the last, which is made of all before.

    Args:
        place: Of the run, for errors.
        remedy: What to do where there is none.

    Raises:
        FormatError: There is none.
    """
    numbers = [number for number, stage in enumerate(STAGES, 1) if stage in there]
    if not numbers:
        raise FormatError(f"{place} is a run of which no stage is finished yet: {remedy}")
    return STAGES[: numbers[-1]]


def check_made_of(stages: Mapping[str, manifests.Manifest], place: object, remedy: str) -> None:
    """Checks that each stage of a run was made of those before.

    Args:
        stages: Name -> what its manifest says.
        place: Of the run, for errors.
        remedy: What to do, as in "upload it again".

    Raises:
        FormatError: One was made of another.
    """
    for stage, manifest in stages.items():
        for of in manifest.inputs.keys() & stages.keys():
            if manifest.inputs[of] != stages[of].digest():
                raise FormatError(
                    f"{place}/{stage} was made of another {of} stage than {place}/{of} is: {remedy}"
                )


_LATER = ("processes", "parts")  # options that are stored where they say something


def differences(folder: Path, wanted: RunInfo) -> list[str]:
    """Returns what is finished in ``folder`` under other options than ``wanted``, and would be made anew: each option
    with both values. Of limits this is what was packed; a plan alone is made in no time. A run of a graph that has
    changed is worth nothing, and rates of the disk that were measured again do not count beside other options.
    """
    try:
        have = read(folder)
        sampled = manifests.read_any(folder / "sample").config
    except OutcropError:  # nothing is finished, or nothing of it can be used
        return []
    same_graph = have.graph_path(folder) == wanted.graph_path(folder)
    if have.sample == wanted.sample and have.plan == wanted.plan and same_graph:
        return []
    if same_graph and have.graph_digest != wanted.graph_digest:
        return []
    there, now = (
        manifests.plain(have.sample.as_stored()) | sampled,
        manifests.plain(wanted.sample.as_stored()),
    )
    there["graph"], now["graph"] = str(have.graph_path(folder)), str(wanted.graph_path(folder))
    if have.plan.parts != wanted.plan.parts:  # batches lie in them, too
        there["parts"], now["parts"] = have.plan.parts, wanted.plan.parts
    if manifests.exists(folder / "pack"):
        there |= manifests.plain(have.plan.as_stored())
        now |= manifests.plain(wanted.plan.as_stored())
    found = {
        name: f"{name} (there {_written(name, there.get(name))}, now {_written(name, now.get(name))})"
        for name in dict.fromkeys((*now, *(name for name in _LATER if name in there)))
        if there.get(name) != now.get(name)
    }
    rates = {"sequential_rate", "random_rate"}
    return [text for name, text in found.items() if name not in rates or found.keys() <= rates]


def _written(name: str, value: Any) -> str:
    """Writes the value of an option; limits as users give them."""
    if name not in ("memory", "gpu_memory", "disk_space"):
        return repr(value)
    return "no limit" if value is None else exact_bytes(value)


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
                f"{path} is {raw['format']!r} version {raw['version']!r}, not {_FORMAT} {_VERSION}"
            )
        sample, plan = raw["sample"], raw["plan"]
        return RunInfo(
            raw["graph"],
            raw["graph_digest"],
            SampleConfig.from_stored(
                {**sample, "fanouts": tuple(sample["fanouts"]), "splits": tuple(sample["splits"])}
            ),
            PlanConfig(**{**plan, "packed_splits": tuple(plan["packed_splits"])}),
        )
    except FileNotFoundError:
        if not folder.exists():
            raise FormatError(
                f"{folder} does not exist: make the run with outcrop prepare GRAPH {folder}, with the fanouts that you "
                "want, or train without naming a run, which makes one"
            ) from None
        raise FormatError(
            f"{folder} is no Outcrop run ({path.name} is missing): make one with outcrop prepare"
        ) from None
    except (KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} cannot be read as a run: {error}") from None

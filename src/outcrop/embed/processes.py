"""What several processes make of the options of a training of embeddings."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from outcrop.config import EmbedConfig
from outcrop.embed.buckets import Buckets
from outcrop.embed.checkpoint import CHECKPOINT, FOLDER, newest
from outcrop.embed.checkpoint_copy import copy_of
from outcrop.errors import ArgumentError
from outcrop.runtime.group import Group


def for_processes(config: EmbedConfig, run: Path, fresh: bool, group: Group) -> EmbedConfig:
    """Returns ``config`` with a number of groups: as the checkpoint has it that is gone on from, else one a process.

    Args:
        fresh: Whether no checkpoint is gone on from.

    Raises:
        ArgumentError: There are fewer groups than processes.
    """
    groups, whose = config.groups, "--groups"
    if groups is None and not fresh:
        copy = copy_of(config, run / FOLDER, group)
        found = newest(run / FOLDER / CHECKPOINT, group) if copy is None else copy.newest()
        if found is not None:
            groups, whose = found.groups, f"the checkpoint in {run}"
    groups = group.world if groups is None else groups
    if groups < group.world:
        raise ArgumentError(
            f"{group.world} processes train, and there are {groups} groups of partitions ({whose}), so that some would "
            f"have nothing to do: start at most {groups} processes, or begin anew with --groups {group.world} or more"
        )
    return replace(config, groups=groups)


def require_same(config: EmbedConfig, buckets: Buckets, group: Group) -> None:
    """Checks that all processes train the same.

    Raises:
        ArgumentError: They differ in what it names.
    """
    plain = asdict(replace(config, checkpoint_copy=None))
    group.require_same({**plain, "buckets": buckets.manifest.digest(), "run": str(buckets.path.parent)})

"""What a preparation that was refused has begun beside a graph, and how it goes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from outcrop.errors import BudgetError
from outcrop.store import run as runs
from outcrop.store.lock import is_of, opened, try_lock

# What a preparation leaves that was refused before its end: no packed stage, but of pools those for evaluation.
_BEGUN = re.compile(
    rf"{re.escape(runs.RUN_FILE)}|\.?(sample|plan)(\.partial)?|\.pack\.partial|history|eval|pool-\d+"
)


@contextmanager
def giving_up(folder: Path) -> Iterator[None]:
    """Removes what was begun in ``folder`` where a limit cannot be met so, as its disk is for what is done instead; a
    folder that was there before stays.
    """
    new = [] if folder.exists() else [folder]
    try:
        yield
    except BudgetError:
        remove_begun(new)
        raise


def remove_begun(new: Sequence[Path]) -> None:
    """Removes those of ``new`` that hold nothing but what a preparation has begun, and that nobody else has locked.

    Args:
        new: Folders of runs and pools that were not there before.
    """
    for folder in new:
        with suppress(OSError), ExitStack() as locks:  # there is none
            if not _lock(folder, locks):
                continue
            inner = list(folder.iterdir())
            folders = [path for path in inner if path.is_dir()]
            if all(_BEGUN.fullmatch(path.name) for path in inner) and all(
                _lock(one, locks) for one in folders
            ):
                shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path, locks: ExitStack) -> bool:
    """Locks a folder, where locks are known; False: somebody else has it, or has removed it."""
    handle = locks.enter_context(opened(folder))
    return try_lock(handle, wait=False) is not False and is_of(handle, folder)

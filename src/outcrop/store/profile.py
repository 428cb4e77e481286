"""The profile of a machine: what the cost model needs to know of it, measured once and kept as JSON.

A profile belongs to one machine and one disk; what identifies them is kept with it. One of another machine, disk or
version, or older than a month, is measured again where Outcrop keeps it, and refused where a file was named.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import outcrop
from outcrop.errors import FormatError, naming_files
from outcrop.runtime.hardware import Disk, Hardware, HostCosts
from outcrop.runtime.parsing import parse_json
from outcrop.runtime.system import cache_folder
from outcrop.store import manifest as manifests

FORMAT, VERSION = "outcrop.profile", 2
HERE = "here"
_MOST_SECONDS = 30 * 86400


@dataclass(frozen=True)
class Profile:
    """Holds what was measured of a machine and a file system.

    Attributes:
        key: What identifies machine and disk.
        reads: (bytes of a request, requests per second), through the engine past the page cache.
        write_bytes_per_s: Rate of writing in large requests.
        copy_bytes_per_s, gather_bytes_per_s: Rates of all cores together: of rows moved in order, of rows picked from
            anywhere.
        steps: Seconds of a training step of each model on the batch of ``outcrop.advisor.steps.synthetic_batch``.
        host: CPU costs of loading.
        bus_bytes_per_s: Rate of copies to the GPU; None without one.
        gpu_steps: As ``steps``, on the GPU.
    """

    key: dict[str, Any]
    cores: int
    memory_bytes: int
    reads: tuple[tuple[int, float], ...]
    latency_s: float
    write_bytes_per_s: float
    copy_bytes_per_s: float
    gather_bytes_per_s: float
    host: HostCosts
    steps: dict[str, float]
    bus_bytes_per_s: float | None = None
    gpu_steps: dict[str, float] = field(default_factory=dict)
    gpu_memory_bytes: int = 0
    measured_at: float = 0.0
    seconds: float = 0.0

    def hardware(self, *, gpu: bool = False) -> Hardware:
        """Describes this machine as the cost model knows it; with its ``gpu`` nothing that loads is in the way of
        computing.
        """
        bus = self.bus_bytes_per_s if gpu and self.bus_bytes_per_s else float("inf")
        return Hardware(
            HERE,
            Disk("disk", self.reads, self.latency_s),
            bus_bytes_per_s=bus,
            memory_bytes=self.memory_bytes,
            cores=self.cores,
            host=replace(self.host, stall=0.0, stretch=1.0) if gpu else self.host,
        )

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}


def key_of(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Returns what identifies this machine and the file system of ``folder``; ``about``:
    outcrop.runtime.machine.describe().
    """
    disk = os.statvfs(folder)
    return {
        "outcrop": outcrop.__version__,
        "cpu": about["cpu"],
        "cores": about["cores"],
        "memory_bytes": about["memory_bytes"],
        "device": os.stat(folder).st_dev,
        "disk_bytes": disk.f_blocks * disk.f_frsize,
    }


def default_path(key: dict[str, Any]) -> Path:
    """Returns where the profile of ``key`` is kept."""
    name = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=6).hexdigest()
    return cache_folder() / f"profile-{name}.json"


def write(path: Path, profile: Profile) -> None:
    """Raises IoError where ``path`` cannot be written."""
    with naming_files(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    manifests.write_atomic(path, (json.dumps(profile.to_json(), indent=1) + "\n").encode())


def read(path: Path) -> Profile:
    """Reads a profile from a file.

    Raises:
        FormatError: It is none, or of another version.
    """
    try:
        raw = parse_json(path.read_bytes())
        found = raw.pop("format"), raw.pop("version")
        if found != (FORMAT, VERSION):
            raise FormatError(
                f"{path} is {found[0]!r} version {found[1]!r}, not {FORMAT} {VERSION}: measure again"
            )
        raw["reads"] = tuple((int(size), float(rate)) for size, rate in raw["reads"])
        raw["host"] = HostCosts(**raw["host"])
        profile = Profile(**raw)
        profile.hardware()  # checks the rates
        return profile
    except FormatError:
        raise
    except FileNotFoundError:
        raise FormatError(f"{path} is not there: make it with outcrop doctor --save {path}") from None
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise FormatError(
            f"{path} cannot be read as a profile ({error}): measure again with outcrop doctor --save {path}"
        ) from None


def load_or_measure(
    key: dict[str, Any],
    measure: Callable[[], Profile],
    *,
    path: Path | None = None,
    now: float | None = None,
) -> Profile:
    """Returns the profile of the machine ``key``: from ``path``, or the one kept, measured where that is no good.

    Raises:
        FormatError: ``path`` is no profile, or that of another machine.
    """
    if path is not None:
        profile = read(path)
        if problem := _differs(profile, key):
            raise FormatError(
                f"{path} was measured elsewhere: {problem}; make one here with outcrop doctor --save"
            )
        return profile
    if (found := kept(key, now=now)) is not None:
        return found
    profile = measure()
    # Where it can be kept nowhere, as in a container, it is measured again next time.
    with contextlib.suppress(OSError):
        write(default_path(key), profile)
    return profile


def kept(key: dict[str, Any], *, now: float | None = None) -> Profile | None:
    """Returns the profile of the machine ``key`` where it is kept and still good; measures nothing."""
    try:
        profile = read(default_path(key))
    except FormatError:
        return None  # not there, damaged or of another version
    age_s = (time.time() if now is None else now) - profile.measured_at
    return profile if not _differs(profile, key) and age_s < _MOST_SECONDS else None


def _differs(profile: Profile, key: dict[str, Any]) -> str:
    """Says what does not fit, in words; empty where all does."""
    for name, value in key.items():
        if profile.key.get(name) != value:
            return f"{name} is {profile.key.get(name)!r} there and {value!r} here"
    return ""

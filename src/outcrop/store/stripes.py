"""Stripes: copies of a share of a graph's feature rows, each in a folder of its own, which may be on another disk.

Array ``features`` of stripe k of n holds rows k, k + n, k + 2 n, ... of the features of the graph; k goes from 1 to
n - 1. Stripe 0 is the graph itself: its share is read there, so nothing of it is copied. Attributes: ``stripe`` (k),
``stripes`` (n). Inputs: the digest of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import DiskArray
from outcrop.store.graph import Graph

FORMAT, VERSION = "outcrop.stripe", 1


@dataclass(frozen=True)
class Stripe:
    """Describes a stripe on disk.

    Attributes:
        number: Which one of ``count`` it is, from 1 on.
    """

    path: Path
    manifest: manifests.Manifest
    number: int
    count: int

    def array(self, runtime: Runtime) -> DiskArray:
        """Opens the rows for reading."""
        return DiskArray(runtime, self.path, self.manifest.arrays["features"])


def open_stripes(graph: Graph, folders: Sequence[Path | str]) -> list[Stripe]:
    """Opens the stripes of the features of ``graph``, in whatever order the folders are given; sorted by number.

    Raises:
        FormatError: A folder holds no stripe, or one of another graph.
        ArgumentError: They are not stripes 1 to n - 1 of the same n.
    """
    found = []
    for folder in map(Path, folders):
        with manifests.opening(folder, FORMAT, VERSION) as manifest:
            stripe = Stripe(folder, manifest, manifest.attributes["stripe"], manifest.attributes["stripes"])
            if manifest.inputs["graph"] != graph.digest():
                raise FormatError(
                    f"{folder} holds features of another graph than {graph.path}: make the stripes again with "
                    "outcrop stripe"
                )
            found.append(stripe)
    found.sort(key=lambda stripe: stripe.number)
    count = len(found) + 1
    if [(stripe.number, stripe.count) for stripe in found] != [(k, count) for k in range(1, count)]:
        given = ", ".join(f"{s.path} is stripe {s.number} of {s.count}" for s in found)
        raise ArgumentError(f"name every stripe once, all that were made together: {given}")
    return found

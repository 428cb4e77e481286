"""Sources with several types of nodes or edges, which a graph on disk cannot hold yet."""

from __future__ import annotations

from typing import NoReturn

from outcrop.errors import ArgumentError


def refuse_typed(name: str, what: str) -> NoReturn:
    """Refuses a source with several types of nodes or edges.

    Args:
        name: What messages call the source.
        what: What says that there are several, such as ``a.csv lists 4 types of nodes``.

    Raises:
        ArgumentError: Always.
    """
    raise ArgumentError(
        f"{name} has several types of nodes or edges ({what}), and a graph has one of each now: import one of them "
        "from arrays of its own (arrays:DIR)"
    )

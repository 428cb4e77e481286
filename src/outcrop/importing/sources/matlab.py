"""``mat:FILE``: MATLAB files (version 5 to 7.2), such as BlogCatalog with ``network`` and ``group``.

The edges are a sparse or dense square matrix (an edge from row to column for each entry), labels one column or one per
class, features a matrix with a row per node. What the variables are is told by their names.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import GraphSource
from outcrop.importing.sources.matrix import csr_of_scipy
from outcrop.importing.sources.parts import Part, Parts, open_parts
from outcrop.runtime.runtime import Runtime

NAMES = {
    "edges": ("network", "net", "adj", "adjacency", "a", "graph"),
    "labels": ("group", "labels", "label", "gnd", "y", "class"),
    "features": ("features", "attributes", "attrb", "attr", "feature", "x"),
}


def open_matlab(path: Path, runtime: Runtime, held: ExitStack) -> GraphSource:
    """Opens ``mat:FILE``; reads it whole, under the budget. Needs SciPy.

    Raises:
        ArgumentError: The file is missing, SciPy is not installed, or no variable is a network.
        FormatError: No MATLAB file of version 5, or torn.
    """
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ArgumentError("mat:FILE is read by SciPy, which is not installed: pip install scipy") from None
    if not path.is_file():
        raise ArgumentError(f"{path} is no file: mat:FILE needs a .mat file")
    held.enter_context(runtime.budget.reserve("import", 2 * path.stat().st_size))
    try:
        variables = {n: v for n, v in loadmat(path).items() if not n.startswith("__")}
    except NotImplementedError:
        raise FormatError(f"{path} is of MATLAB version 7.3: save it again with -v7") from None
    except Exception as error:  # the parser of foreign bytes raises whatever it stumbles over
        raise FormatError(f"{path} is no MATLAB file or is torn: {error}") from None
    parts: dict[str, Part] = {}
    for kind, names in NAMES.items():
        variables_of_kind = [n for n in variables if n.lower() in names]
        if len(variables_of_kind) > 1:
            raise ArgumentError(
                f"{path} has {' and '.join(variables_of_kind)}, which may both be its {kind}: keep one of them"
            )
        if variables_of_kind:
            parts[kind] = Part(
                f"{path} {variables_of_kind[0]}",
                _value(f"{path} {variables_of_kind[0]}", kind, variables.pop(variables_of_kind[0])),
            )
    if "edges" not in parts:
        raise ArgumentError(
            f"{path} holds {', '.join(variables) or 'nothing'}; the network is looked for as "
            f"{', '.join(NAMES['edges'])}"
        )
    notes = (f"variables of {path} that are not imported: {', '.join(variables)}",) if variables else ()
    return open_parts(Parts(str(path), parts, notes=notes), runtime)


def _value(name: str, kind: str, value: Any) -> Any:
    if hasattr(value, "tocsr"):
        return csr_of_scipy(name, value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub" or value.ndim != 2:
        raise FormatError(f"{name} is no matrix of numbers")
    if kind == "edges":
        from scipy.sparse import csr_matrix

        return csr_of_scipy(name, csr_matrix(value))
    return value[0] if kind == "labels" and value.shape[0] == 1 and value.shape[1] > 1 else value

"""Options of importing a graph: what becomes of duplicates, loops, dtypes, splits and labels."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from outcrop.errors import ArgumentError
from outcrop.importing.sources.base import SplitProtocol
from outcrop.store.graph import LABEL_KINDS, LabelKind


@dataclass(frozen=True)
class ImportConfig:
    """Says how a source becomes a graph.

    Attributes:
        keep_duplicates: Keep edges that are listed more than once. By default one of each is kept, so that sampling
            without replacement gives distinct neighbours.
        keep_self_loops: None = as is usual for the source (kept, except for sparse archives).
        reverse: Store the reverse of every edge too; None = for sources that list undirected edges once.
        feature_dtype: Convert floating features to float16, float32, float64 or bfloat16; None = as in the source.
        bfloat16_bits: uint16 features are the raw bits of bfloat16.
        allow_nonfinite: Accept NaN and infinity in features.
        split_protocol: How nodes are divided where the source has no splits; None = as is usual for it. ``fractions``;
            ``per-class``: 20 of each class train, 30 validate, the rest test; ``planetoid``: 20 of each class, 500,
            1000; ``none``. Only nodes with a label take part.
        train_fraction, valid_fraction, test_fraction: Shares for ``fractions``; giving one chooses that protocol, and
            replaces the splits of the source. Without ``test_fraction`` the rest is for testing.
        split_seed: Names the division; the same seed gives the same one on every machine.
        split_index: Which of several splits of the source.
        num_nodes: Number of nodes; None = the rows of features or labels, else the largest id + 1.
        label_kind: ``class``, ``multilabel`` or ``regression``; None = as the values are (see
            :mod:`outcrop.importing.sources.labels`).
    """

    keep_duplicates: bool = False
    keep_self_loops: bool | None = None
    reverse: bool | None = None
    feature_dtype: str | None = None
    bfloat16_bits: bool = False
    allow_nonfinite: bool = False
    split_protocol: SplitProtocol | None = None
    train_fraction: float | None = None
    valid_fraction: float | None = None
    test_fraction: float | None = None
    split_seed: int = 0
    split_index: int = 0
    label_kind: LabelKind | None = None
    num_nodes: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.feature_dtype not in (None, "float16", "bfloat16", "float32", "float64"):
            problems.append(
                f"feature dtype {self.feature_dtype!r} is none of float16, bfloat16, float32, float64"
            )
        if self.split_protocol not in (None, "fractions", "per-class", "planetoid", "none"):
            problems.append(
                f"split protocol {self.split_protocol!r} is none of fractions, per-class, planetoid, none"
            )
        if self.fractions_given and self.split_protocol not in (None, "fractions"):
            problems.append(f"fractions are given, but the split protocol is {self.split_protocol!r}")
        train, valid, test = self.fractions()
        if min(train, valid, test) < 0 or train + valid + test > 1 + 1e-9:
            problems.append(
                f"split fractions {train:g}, {valid:g}, {test:g} are negative or exceed 1 together"
            )
        if self.label_kind not in (None, *LABEL_KINDS):
            problems.append(f"label kind {self.label_kind!r} is none of {', '.join(LABEL_KINDS)}")
        if self.num_nodes is not None and self.num_nodes < 1:
            problems.append(f"number of nodes {self.num_nodes} is below 1")
        if self.split_index < 0:
            problems.append(f"split index {self.split_index} is negative")
        if problems:
            raise ArgumentError("; ".join(problems))

    def stored(self) -> dict[str, Any]:
        """Returns the fields for the manifest; those that came later are left out where they say nothing, as they were
        then.
        """
        later = ("label_kind", "num_nodes")
        return {name: value for name, value in asdict(self).items() if name not in later or value is not None}

    @property
    def fractions_given(self) -> bool:
        return any(f is not None for f in (self.train_fraction, self.valid_fraction, self.test_fraction))

    def fractions(self) -> tuple[float, float, float]:
        """Returns shares of train, valid, test; 60 %, 20 %, the rest where nothing is said."""
        train = 0.6 if self.train_fraction is None else self.train_fraction
        valid = min(0.2, max(0.0, 1 - train)) if self.valid_fraction is None else self.valid_fraction
        rest = max(0.0, 1 - train - valid)
        return train, valid, rest if self.test_fraction is None else self.test_fraction

"""Import of what nodes have: features, labels and splits of one node type, block by block within the budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import ImportConfig, LabelKind
from outcrop.config.graphs import QUANTISED_DTYPES
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.quantise import RowQuantiser, quantisation_for
from outcrop.importing.sources.base import FeatureSource, LabelSource, NodeSource, block_bytes
from outcrop.importing.sources.labels import labelled, write_labels
from outcrop.importing.sources.reorder import in_node_order, short_blocks
from outcrop.importing.sources.split import Splitter, check_splits, per_class_splits
from outcrop.importing.sparse_rows import SparseChoice, SparseRowWriter
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import ArrayWriter, DiskArray, storage_dtype
from outcrop.store.manifest import ArraySpec
from outcrop.store.quantised import ATTRIBUTE
from outcrop.store.sparse_rows import ATTRIBUTE as SPARSE

_ALLOW = "allow NaN and infinity (--allow-nonfinite, ImportConfig(allow_nonfinite=True))"
_KEEP = "import them as they are: few bits have no code for it"


def _feature_dtype(features: FeatureSource | None, config: ImportConfig) -> str | None:
    """Returns the name of the stored dtype."""
    if features is None:
        if config.feature_dtype or config.bfloat16_bits:
            raise ArgumentError("a feature dtype is asked for, but the source has no features")
        if config.feature_storage:
            raise ArgumentError(
                f"feature storage {config.feature_storage!r} is asked for, but the source has no features"
            )
        return None
    dtype = features.dtype.newbyteorder("=")
    if config.bfloat16_bits:
        if dtype != np.uint16 or config.feature_dtype not in (None, "bfloat16"):
            raise ArgumentError(
                f"{features.name} holds {dtype}; raw bfloat16 bits are uint16 and stay bfloat16"
            )
        return "bfloat16"
    if config.feature_dtype and dtype.kind not in "fiub":
        raise ArgumentError(f"{features.name} holds {dtype}, which cannot become {config.feature_dtype}")
    return config.feature_dtype or stored_dtype(features)


def stored_dtype(rows: FeatureSource) -> str:
    """Returns the name of the dtype that rows are stored in as they are. Raises FormatError where there is none."""
    dtype = rows.dtype.newbyteorder("=")
    name = "uint8" if dtype == np.bool_ else dtype.name
    storage_dtype(name)  # refuses what cannot be stored
    return name


class NodeImport:
    """Writes the arrays of the nodes of one type into a folder and collects what the manifest says of them.

    Attributes:
        arrays: What was written.
        attributes: num_classes and, where they say something, feature_dim, label_kind and class_names.
        notes: What the user should know, a sentence each.
    """

    def __init__(self, source: NodeSource, config: ImportConfig, runtime: Runtime):
        self.source, self.config, self.runtime = source, config, runtime
        self.dtype = _feature_dtype(source.features, config)
        self.work = Path()
        self.arrays: dict[str, ArraySpec] = {}
        self.attributes: dict[str, Any] = {"num_classes": 0, "feature_dim": 0}
        self.notes: list[str] = []

    def write(self, work: Path, num_nodes: int) -> None:
        """Writes the arrays into ``work``; where the runtime only measures, they stay empty.

        Raises:
            ArgumentError: A part has not a row for each of ``num_nodes`` nodes, or contradicts another.
            FormatError: A file is torn or not what it should be.
        """
        self.work = work
        for name, rows in (("features", self.source.features), ("labels", self.source.labels)):
            if rows is not None and rows.num_rows not in (None, num_nodes):
                raise ArgumentError(
                    f"{rows.name} has {rows.num_rows} rows of {name}, {self.source.whose} {num_nodes} nodes"
                )
        if self.source.features is not None and self.dtype is not None:
            if self.config.feature_dtype in QUANTISED_DTYPES:
                self._quantised_features(self.source.features)
            else:
                self._features(self.source.features, self.dtype)
        if self.source.labels is not None:
            self._labels(self.source.labels, num_nodes)
        self._splits(num_nodes)

    def _features(self, features: FeatureSource, dtype: str) -> None:
        self.attributes["feature_dim"] = features.dim
        rows, row = self._block_rows(features), 0
        with (
            self.runtime.budget.reserve("import", 2 * rows * features.dim * features.dtype.itemsize),
            self._row_writer(features, dtype, rows) as writer,
            self.runtime.task("features", features.num_rows, "rows"),
        ):
            for block in in_node_order(features, self.runtime, self.work, rows):
                if self.runtime.measures:
                    return
                converted = convert(block, dtype, self.config.bfloat16_bits)
                if not self.config.allow_nonfinite:
                    check_finite(features, converted, dtype, row)
                writer.append(converted)
                row += len(block)
                self.runtime.progress.advance("features", len(block))
        self._check_rows(features.name, row, features.num_rows)
        writer.finish_into(self.arrays)

    @contextmanager
    def _row_writer(
        self, features: FeatureSource, dtype: str, rows: int
    ) -> Iterator[ArrayWriter | SparseRowWriter]:
        """Yields what writes the features, after it looked at them where nobody said whether they are sparse."""
        choice = SparseChoice(self.config.feature_storage, dtype, features.dim)
        packed = self.runtime.budget.empty("import", choice.packed_bytes(rows))
        layout = choice.count(
            features, self.runtime, rows, lambda block: convert(block, dtype, self.config.bfloat16_bits)
        )
        if layout is None or self.runtime.measures:
            yield ArrayWriter(self.runtime, self.work, "features", dtype, (features.dim,), page_sums=True)
            return
        self.attributes[SPARSE] = layout.as_attribute()
        self.notes.append(choice.note(layout))
        yield SparseRowWriter(layout, self.runtime, self.work, packed, features.name)

    def _block_rows(self, features: FeatureSource) -> int:
        row_bytes = features.dim * max(features.dtype.itemsize, 4)
        return min(max(1, block_bytes(self.runtime) // row_bytes), features.num_rows)

    def _quantised_features(self, features: FeatureSource) -> None:
        """Writes codes of the features; where scales are of columns the features are read for their ranges first."""
        self.attributes["feature_dim"] = features.dim
        quantisation = quantisation_for(self.config.feature_dtype, self.config.scale, features.dim)
        self.attributes[ATTRIBUTE] = quantisation.as_attribute()
        rows = self._block_rows(features)
        quantiser = RowQuantiser(quantisation, self.runtime, self.work, rows)
        # A block of the source and what it is converted from, the float32 of it, and which of these are finite.
        values = rows * features.dim
        with self.runtime.budget.reserve("import", values * (2 * features.dtype.itemsize + 5)):
            if quantisation.scale == "column":
                self._find_ranges(features, quantiser, rows)
            quantiser.begin()
            with self.runtime.task("features", features.num_rows, "rows"):
                row = 0
                for block in in_node_order(features, self.runtime, self.work, rows):
                    if self.runtime.measures:
                        return
                    converted = convert(block, "float32")
                    check_finite(features, converted, "float32", row, remedy=_KEEP)
                    quantiser.append(converted)
                    row += len(block)
                    self.runtime.progress.advance("features", len(block))
        self._check_rows(features.name, row, features.num_rows)
        quantiser.finish_into(self.arrays)

    def _find_ranges(self, features: FeatureSource, quantiser: RowQuantiser, rows: int) -> None:
        """Tells ``quantiser`` of all values."""
        with self.runtime.task("ranges of columns", features.num_rows, "rows"):
            row = 0
            for block in short_blocks(features, self.runtime, rows):
                if self.runtime.measures:
                    break
                converted = convert(block, "float32")
                check_finite(features, converted, "float32", row, in_node_order=False, remedy=_KEEP)
                quantiser.widen(converted)
                row += len(block)
                self.runtime.progress.advance("ranges of columns", len(block))

    def _labels(self, labels: LabelSource, num_nodes: int) -> None:
        with self.runtime.task("labels", num_nodes, "rows"):
            stored = write_labels(
                labels, num_nodes, self.runtime, self.work, self.config.label_kind, self.source.class_names
            )
            self.runtime.progress.advance("labels", stored.spec.shape[0])
        self._check_rows(labels.name, stored.spec.shape[0], num_nodes)
        self.arrays["labels"] = stored.spec
        self.attributes |= stored.attributes
        self.notes += stored.notes

    def _label_kind(self) -> LabelKind:
        return self.attributes.get("label_kind", "class")

    def _check_rows(self, name: str, found: int, wanted: int) -> None:
        if found != wanted:
            raise ArgumentError(f"{name} has {found} rows, {self.source.whose} {wanted} nodes")

    def _splits(self, num_nodes: int) -> None:
        given = (
            None
            if self.config.fractions_given or self.config.split_protocol
            else self.source.splits(num_nodes)
        )
        if given is not None:
            self._write_splits(check_splits(self.source, given, self.runtime, num_nodes))
            return
        fallback = "fractions" if self.config.fractions_given else self.source.split_protocol
        protocol = self.config.split_protocol or fallback
        if protocol == "fractions":
            self._fraction_splits(num_nodes)
        elif protocol in ("per-class", "planetoid"):
            if "labels" not in self.arrays:
                raise ArgumentError(
                    f"{self.source.name} has no labels, which split protocol {protocol!r} needs"
                )
            if self._label_kind() != "class":
                raise ArgumentError(
                    f"{self.source.name} has labels of kind {self._label_kind()}; split protocol {protocol!r} "
                    "needs classes"
                )
            labels = DiskArray(self.runtime, self.work, self.arrays["labels"]).read("split-labels")
            self._write_splits(
                per_class_splits(labels, self.config.split_seed, protocol == "planetoid", self.runtime)
            )

    def _fraction_splits(self, num_nodes: int) -> None:
        rows = max(1024, block_bytes(self.runtime) // 64)
        starts = range(0, num_nodes, rows)
        labels = (
            DiskArray(self.runtime, self.work, self.arrays["labels"]) if "labels" in self.arrays else None
        )

        kind = self._label_kind()

        def blocks() -> Iterator[np.ndarray]:
            """Yields ids of the nodes that take part."""
            for start in starts:
                stop = min(start + rows, num_nodes)
                ids = np.arange(start, stop)
                yield ids if labels is None else ids[labelled(labels.read("import", start, stop), kind)]

        count = sum(len(ids) for ids in blocks())
        splitter = Splitter(self.config.split_seed, count, self.config.fractions())
        self.arrays |= splitter.write(blocks(), self.runtime, self.work)

    def _write_splits(self, splits: dict[str, np.ndarray]) -> None:
        for name in SPLITS:
            if name in splits:
                writer = ArrayWriter(self.runtime, self.work, name, "int64")
                writer.append(splits[name])
                self.arrays[name] = writer.finish()


def convert(block: np.ndarray, dtype: str, bfloat16_bits: bool = False) -> np.ndarray:
    """Returns ``block`` in the storage of ``dtype``; bfloat16 rounds to nearest, ties to even, as
    ``torch.Tensor.bfloat16``.
    """
    if dtype == "bfloat16" and not bfloat16_bits:
        bits = np.ascontiguousarray(block, np.float32).view(np.uint32)
        rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
        return np.where(
            (bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), rounded
        )  # NaN must not round to infinity
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(block, storage_dtype(dtype))


def check_finite(
    features: FeatureSource,
    block: np.ndarray,
    dtype: str,
    first_row: int,
    *,
    in_node_order: bool = True,
    remedy: str = _ALLOW,
) -> None:
    """Raises FormatError for NaN and infinity in ``block``, in the storage of ``dtype``, and says where they are.

    Args:
        in_node_order: Whether rows are those of nodes; else they are in the order of the source.
        remedy: What else can be done than to clean the features.
    """
    if dtype == "bfloat16":
        good = (block & 0x7F80) != 0x7F80
    elif block.dtype.kind == "f":
        good = np.isfinite(block)
    else:
        return
    if not good.all():
        row = int(np.argmin(good.all(axis=1)))
        column = int(np.argmin(good[row]))
        place = features.at if in_node_order else features.at_row
        raise FormatError(
            f"{place(first_row + row, column)} is not finite as {dtype}: clean the features, or {remedy}"
        )

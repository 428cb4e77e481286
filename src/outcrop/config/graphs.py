"""How graphs come to be: what an import makes of its source, and which graph is generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from outcrop.config.declared import check_types, stored_fields
from outcrop.errors import ArgumentError

LabelKind = Literal["class", "multilabel", "regression"]
LABEL_KINDS: tuple[LabelKind, ...] = ("class", "multilabel", "regression")
SplitProtocol = Literal["fractions", "per-class", "planetoid", "none"]
FEATURE_DTYPES = ("float16", "bfloat16", "float32", "float64")  # that an import converts to
QUANTISED_DTYPES = ("int8", "uint4")  # that it quantises to: codes of 8 or 4 bits, with a scale
ScaleOf = Literal["column", "row"]
SCALES: tuple[ScaleOf, ...] = ("column", "row")
FeatureStorage = Literal["dense", "sparse"]
FEATURE_STORAGES: tuple[FeatureStorage, ...] = ("dense", "sparse")


_SCALE_OF: dict[str, ScaleOf] = {"uint4": "column"}  # where none is named; int8 has one only where one is


def _scale_problem(dtype: str | None, scale: str | None, what: str) -> str | None:
    """Says what is wrong with the scale of features in few bits; None where nothing is."""
    if scale not in (None, *SCALES):
        return f"scale {scale!r} is none of {', '.join(SCALES)}"
    if scale is not None and dtype not in QUANTISED_DTYPES:
        return f"scale {scale!r} is for features in few bits: {what} {' or '.join(QUANTISED_DTYPES)}, not {dtype}"
    return None


@dataclass(frozen=True)
class ImportConfig:
    """Says how a source becomes a graph.

    Attributes:
        keep_duplicates: Keep edges that are listed more than once. False: one of each is kept, the first, so that
            sampling without replacement gives distinct neighbours; None: so for edges without features, and all are
            kept of those that have some, or whose origins are asked for.
        keep_self_loops: Keep edges from a node to itself; None: as is usual for the source (kept, except for sparse
            archives).
        reverse: Store the reverse of every edge too, as message passing on undirected graphs wants it; None: where the
            source is known to list undirected edges once. Of a graph with types the reverses of an edge type are an
            edge type of their own, ``rev_<relation>``.
        feature_dtype: Convert features to ``float16``, ``bfloat16``, ``float32`` or ``float64``; or quantise them to
            ``int8`` or ``uint4``, one or half a byte a value, which loaders deliver as float32; None: as they are.
        scale: Of features in few bits, what has a scale and an offset of its own: each ``column``, for which an import
            reads the features twice, or each ``row``, which takes 8 bytes more; None: each column.
        bfloat16_bits: Take uint16 features for the raw bits of bfloat16.
        allow_nonfinite: Accept NaN and infinity in features.
        split_protocol: How nodes are divided where the source has no splits: ``fractions``; ``per-class``: 20 of each
            class train, 30 validate, the rest test; ``planetoid``: 20 of each class, 500, 1000; or ``none``. Only nodes
            with a label take part. None: as is usual for the source.
        train_fraction: Share of the labelled nodes that train. Giving a share chooses protocol ``fractions``, and
            replaces the splits of the source; None: 0.6 then.
        valid_fraction: Share that validates, likewise; None: 0.2, or what training leaves.
        test_fraction: Share that tests, likewise; None: the rest.
        split_seed: Names the division; the same seed gives the same one on every machine.
        split_index: Which of several splits of the source.
        label_kind: ``class``, ``multilabel`` or ``regression``; None: as the labels look.
        num_nodes: Number of nodes; None: the rows of features or labels, else the largest id + 1.
        num_classes: Which labels of a source that has several, by their number of classes: 19 or 2983 of ``igb:DIR``;
            None: 19.
        types: ``all``: also what a source leaves out otherwise: of ``igb:DIR`` authors, topics and what else there is
            beside papers, of ``ntriples:FILE`` literals; None: without these.
        edge_origins: Keep with each edge which one of its source it was: :meth:`outcrop.Graph.edge_origins`.
        feature_storage: ``sparse``: of each row only the values that are not zero are stored, with their columns;
            ``dense``: all of them; None: sparse where each row is zeros by half and that takes at most half of the
            bytes. Loaders deliver the same bits.
    """

    keep_duplicates: bool | None = None
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
    num_classes: int | None = None
    types: Literal["all"] | None = None
    edge_origins: bool = False
    scale: ScaleOf | None = None
    feature_storage: FeatureStorage | None = None

    def __post_init__(self) -> None:
        check_types(self)
        problems = self._problems_of_features()
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
        if self.types not in (None, "all"):
            problems.append(f"types {self.types!r} is not 'all'")
        if self.num_nodes is not None and self.num_nodes < 1:
            problems.append(f"number of nodes {self.num_nodes} is below 1")
        if self.split_index < 0:
            problems.append(f"split index {self.split_index} is negative")
        if problems:
            raise ArgumentError("; ".join(problems))
        self._fill_scale()

    def _fill_scale(self) -> None:
        """Names the scale that features in few bits have where none is named: both spellings are the same import."""
        if self.feature_dtype in QUANTISED_DTYPES and self.scale is None:
            object.__setattr__(self, "scale", "column")

    def _problems_of_features(self) -> list[str]:
        problems, known = [], (*FEATURE_DTYPES, *QUANTISED_DTYPES)
        if self.feature_dtype not in (None, *known):
            problems.append(f"feature dtype {self.feature_dtype!r} is none of {', '.join(known)}")
        if wrong := _scale_problem(self.feature_dtype, self.scale, "feature dtype"):
            problems.append(wrong)
        if self.feature_dtype in QUANTISED_DTYPES and self.allow_nonfinite:
            problems.append(f"NaN and infinity are allowed, and {self.feature_dtype} has no code for them")
        if self.feature_storage not in (None, *FEATURE_STORAGES):
            problems.append(
                f"feature storage {self.feature_storage!r} is none of {', '.join(FEATURE_STORAGES)}"
            )
        if self.feature_storage == "sparse" and self.feature_dtype in QUANTISED_DTYPES:
            problems.append(
                f"feature storage 'sparse' keeps values, and {self.feature_dtype} keeps codes of all"
            )
        return problems

    def stored(self) -> dict[str, Any]:
        """Returns the fields for the manifest."""
        fields = stored_fields(
            self,
            ("label_kind", "num_nodes", "num_classes", "types", "edge_origins", "scale", "feature_storage"),
        )
        return fields | {"keep_duplicates": bool(self.keep_duplicates)}

    @property
    def fractions_given(self) -> bool:
        return any(f is not None for f in (self.train_fraction, self.valid_fraction, self.test_fraction))

    def fractions(self) -> tuple[float, float, float]:
        """Returns shares of train, valid, test; 60 %, 20 %, the rest where nothing is said."""
        train = 0.6 if self.train_fraction is None else self.train_fraction
        valid = min(0.2, max(0.0, 1 - train)) if self.valid_fraction is None else self.valid_fraction
        rest = max(0.0, 1 - train - valid)
        return train, valid, rest if self.test_fraction is None else self.test_fraction


@dataclass(frozen=True)
class GenerateConfig:
    """Says which synthetic graph to generate.

    Attributes:
        kind: ``sbm``: power-law degrees and planted classes, which a GNN learns; ``rmat``: R-MAT, by default with
            Graph500's quadrants; ``typed``: papers, authors, topics and institutions, where the class of a paper shows
            in its citations and its authors together.
        nodes: Number of nodes; of all types together.
        edges: Number of edges, which are directed and distinct. Of ``typed`` so many are drawn for all edge types
            together, and repeated ones dropped; each edge type has a reverse beside it.
        features: Columns of the features; 0: none. Of ``typed`` those of papers; authors have half of them in float16,
            topics a quarter in int8, institutions none.
        classes: Number of labels, which are equally frequent.
        dtype: Type of the features: ``float32``, ``float16``, ``bfloat16``, ``int8`` in steps of 2^-5 or, with a
            scale, quantised as an import does, or ``uint4``, which is quantised.
        scale: Of quantised features, what has a scale of its own: each ``column``, or each ``row``; None: each column
            of ``uint4``, and ``int8`` is not quantised. Not of kind ``typed``.
        train_fraction: Share of the nodes that train, rounded to whole nodes.
        valid_fraction: Share of the nodes that validate, likewise.
        test_fraction: Share of the nodes that test, likewise.
        homophily: Chance that a source is drawn from the class of its target (sbm), or of its kind (typed).
        skew: Exponent: the degree of the k-th hottest node goes with k^-skew (sbm).
        a: Chance of the quadrant in which the bits of source and target are 0 (rmat).
        b: Chance of the quadrant in which the bit of the target alone is 1; where both are, the rest (rmat).
        c: Chance of the quadrant in which the bit of the source alone is 1 (rmat).
        signal: Length of the class means, in units of the noise of one column; None: such that single rows are
            classified right about half the time.
        seed: Number that decides everything: the same seed gives the same graph on every machine.
        edge_features: Columns of float16 that each edge ``cites``, and each of its reverse, has (typed); 0: none.
            Neighbour lists are the same with and without them.
    """

    kind: Literal["sbm", "rmat", "typed"] = "sbm"
    nodes: int = 100_000
    edges: int = 1_500_000
    features: int = 128
    classes: int = 16
    dtype: str = "float32"
    train_fraction: float = 0.1
    valid_fraction: float = 0.05
    test_fraction: float = 0.1
    homophily: float = 0.6
    skew: float = 0.67
    a: float = 0.57
    b: float = 0.19
    c: float = 0.19
    signal: float | None = None
    seed: int = 0
    edge_features: int = 0
    scale: ScaleOf | None = None

    def __post_init__(self) -> None:
        check_types(self)
        object.__setattr__(self, "scale", self.scale or _SCALE_OF.get(self.dtype))
        problems = []
        fractions = (self.train_fraction, self.valid_fraction, self.test_fraction)
        if self.kind not in ("sbm", "rmat", "typed"):
            problems.append(f"kind {self.kind!r} is none of sbm, rmat, typed")
        if self.dtype not in ("float32", "float16", "bfloat16", "int8", "uint4"):
            problems.append(f"dtype {self.dtype!r} is none of float32, float16, bfloat16, int8, uint4")
        if wrong := _scale_problem(self.dtype, self.scale, "dtype"):
            problems.append(wrong)
        if self.quantises and self.kind == "typed":
            problems.append(f"dtype {self.dtype!r} is quantised, and rows of a graph of kind 'typed' are not")
        if min(fractions) < 0 or sum(fractions) > 1 + 1e-9:
            problems.append(f"split fractions {fractions} are negative or exceed 1 together")
        if self.edge_features < 0 or (self.edge_features and self.kind != "typed"):
            problems.append(
                f"edge features {self.edge_features} are not possible: kind 'typed' has edges with features, 0 or more "
                f"columns, and this graph is of kind {self.kind!r}"
            )
        for name in ("nodes", "edges", "features", "classes", "edge_features"):
            if (count := getattr(self, name)) >= 1 << 63:
                problems.append(f"{name} {count} is 2^63 or more, which no machine has room for")
        if problems:
            raise ArgumentError("; ".join(problems))

    def stored(self) -> dict[str, Any]:
        """Returns the fields for the manifest."""
        return stored_fields(self, ("edge_features", "scale"))

    @property
    def quantises(self) -> bool:
        """Tells whether features are stored in few bits with a scale."""
        return self.scale is not None or self.dtype == "uint4"

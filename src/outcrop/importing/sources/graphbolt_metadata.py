"""``metadata.yaml`` of ``graphbolt:DIR``: which files there are, and what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.typed import EdgeTypeName, refuse_typed
from outcrop.runtime.runtime import Runtime

METADATA = "metadata.yaml"
SETS = {
    "train": "train_set",
    "valid": "validation_set",
    "test": "test_set",
}  # split -> what it is called there
_FORMATS = {".npy": "numpy", ".pt": "torch", ".pth": "torch", ".csv": "csv"}  # where none is said
_OBJECTS_PER_BYTE = 100  # what text of YAML takes as Python objects
_ORDER = ("seeds", "labels", "indexes")  # names of data that have none


@dataclass(frozen=True)
class DataFile:
    """Names a file of the folder: what it holds, its format (``csv``, ``numpy``, ``torch``) and where it is."""

    name: str
    format: str
    path: Path


@dataclass(frozen=True)
class Task:
    """Describes a task: its name, how many classes it has (None: not said), and by split its data by their name."""

    name: str
    num_classes: int | None
    sets: dict[str, dict[str, DataFile]]


@dataclass(frozen=True)
class Metadata:
    """Describes a data set of one node type and one edge type.

    Attributes:
        num_nodes: Number of nodes.
        edges: File of the edges.
        node_features: Files of features of nodes.
        tasks: Its tasks.
        left: What has no place in a graph, for a note.
    """

    num_nodes: int
    edges: DataFile
    node_features: list[DataFile]
    tasks: list[Task]
    left: list[str]


@dataclass(frozen=True)
class TypedTask:
    """Describes a task of several types: by type of its seeds, a task of these alone."""

    name: str
    by_type: dict[str, Task]


@dataclass(frozen=True)
class TypedMetadata:
    """Describes a data set with types of nodes and edges.

    Attributes:
        sizes: Number of nodes by type.
        edges: File of the edges by edge type.
        features: Files of features by node type, or by edge type as the file spells it.
        tasks: Its tasks.
        left: What has no place in a graph, for a note.
    """

    sizes: dict[str, int]
    edges: dict[EdgeTypeName, DataFile]
    features: dict[str, list[DataFile]]
    tasks: list[TypedTask]
    left: list[str]


def read_metadata(folder: Path, runtime: Runtime) -> Metadata | TypedMetadata:
    """Reads ``metadata.yaml`` of ``folder``.

    Raises:
        ArgumentError: It is not there, PyYAML is not, or it describes nothing but a pickled graph.
        FormatError: It is no YAML, or lacks what is needed.
    """
    path = folder / METADATA
    if not path.is_file():
        if (folder / "preprocessed").is_dir():
            raise ArgumentError(_preprocessed(folder))
        raise ArgumentError(f"{path} is missing: graphbolt:DIR is a folder that has it, beside what it names")
    with runtime.budget.reserve("import", _OBJECTS_PER_BYTE * path.stat().st_size):
        root = _Entry(_parse(path), str(path), folder)
        if "graph" not in root.value:
            if "graph_topology" in root.value:
                raise ArgumentError(_preprocessed(folder))
            raise FormatError(f"{path} has no entry graph")
        return _metadata(root)


def named_files(folder: Path) -> list[Path]:
    """Lists ``metadata.yaml`` and the files that it names, as far as they are there."""
    path = folder / METADATA
    found = [path] if path.is_file() else []
    try:
        metadata = _metadata(_Entry(_parse(path), str(path), folder)) if found else None
    except (ArgumentError, FormatError):  # the import itself says what is wrong
        return found
    if metadata is not None:
        if isinstance(metadata, TypedMetadata):
            files = [*metadata.edges.values(), *(file for of in metadata.features.values() for file in of)]
            tasks = [task for of in metadata.tasks for task in of.by_type.values()]
        else:
            files, tasks = [metadata.edges, *metadata.node_features], metadata.tasks
        files += [file for task in tasks for data in task.sets.values() for file in data.values()]
        found += [file.path for file in files if file.path.is_file()]
    return list(dict.fromkeys(found))


def _preprocessed(folder: Path) -> str:
    return (
        f"{folder} has nothing but a graph that GraphBolt preprocessed, a pickle, which is not read: give the folder "
        f"with the files it was made of, whose {METADATA} has an entry graph"
    )


def _parse(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise ArgumentError(f"{path} cannot be read without PyYAML: pip install pyyaml") from None
    try:
        return yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FormatError(f"{path} is no YAML: {' '.join(str(error).split())}") from None


@dataclass(frozen=True)
class _Entry:
    """Is a value of the file, and what messages call it."""

    given: Any
    name: str
    folder: Path

    @property
    def value(self) -> dict[Any, Any]:
        if not isinstance(self.given, dict):
            raise FormatError(f"{self.name} is {type(self.given).__name__}; entries with names are needed")
        return self.given

    def child(self, key: str) -> _Entry:
        return _Entry(self.value.get(key), f"{self.name}: {key}", self.folder)

    def children(self, key: str) -> list[_Entry]:
        """Returns the items of a list; empty where there is none."""
        items = self.value.get(key)
        if not isinstance(items, list | None):
            raise FormatError(f"{self.name}: {key} is {type(items).__name__}; a list is needed")
        return [_Entry(item, f"{self.name}: {key}[{at}]", self.folder) for at, item in enumerate(items or [])]

    def text(self, key: str, default: str | None = None) -> str:
        given = self.value.get(key, default)
        given = default if given is None else given
        if not isinstance(given, str):
            raise FormatError(f"{self.name} has no {key}, or one that is no text")
        return given

    def number(self, key: str) -> int | None:
        given = self.value.get(key)
        if given is None:
            return None
        if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < 1 << 63:
            raise FormatError(
                f"{self.name}: {key} is {str(given)[:40]!r}; a number that is not negative is needed"
            )
        return given

    def file(self, name: str) -> DataFile:
        path = self.folder / self.text("path")
        form = self.text("format", _FORMATS.get(path.suffix, ""))
        if form not in _FORMATS.values():
            raise FormatError(f"{self.name} has the format {form!r}; csv, numpy and torch are known")
        return DataFile(name, form, path)


def _metadata(root: _Entry) -> Metadata | TypedMetadata:
    graph = root.child("graph")
    nodes, edges = graph.children("nodes"), graph.children("edges")
    if len(nodes) > 1 or len(edges) > 1:
        return _typed(root, nodes, edges)
    if not nodes or not edges:
        raise FormatError(f"{graph.name} lists no nodes, or no edges")
    num_nodes = nodes[0].number("num")
    if num_nodes is None:
        raise FormatError(f"{nodes[0].name} has no num")
    features = [
        (entry.text("domain"), entry.file(entry.text("name"))) for entry in root.children("feature_data")
    ]
    left = [f"{domain} {file.name}" for domain, file in features if domain != "node"]
    left += [f"graph {entry.text('name')}" for entry in graph.children("feature_data")]
    return Metadata(
        num_nodes,
        edges[0].file("edges"),
        [file for domain, file in features if domain == "node"],
        [_task(entry, number) for number, entry in enumerate(root.children("tasks"))],
        left,
    )


def _typed(root: _Entry, nodes: list[_Entry], edges: list[_Entry]) -> TypedMetadata:
    sizes: dict[str, int] = {}
    for entry in nodes:
        name, count = entry.text("type"), entry.number("num")
        if count is None or name in sizes:
            raise FormatError(
                f"{entry.name} has no num" if count is None else f"{entry.name}: {name!r} is listed twice"
            )
        sizes[name] = count
    files: dict[EdgeTypeName, DataFile] = {}
    for entry in edges:
        key = edge_type_of(entry.text("type"), entry.name)
        lost = next((end for end in (key[0], key[2]) if end not in sizes), None)
        if lost is not None or key in files:
            why = f"{lost!r} is no node type" if lost is not None else f"{':'.join(key)!r} is listed twice"
            raise FormatError(f"{entry.name}: {why}")
        files[key] = entry.file("edges")
    features: dict[str, list[DataFile]] = {}
    known = {*sizes, *(":".join(key) for key in files)}
    left = [f"graph {entry.text('name')}" for entry in root.child("graph").children("feature_data")]
    for entry in root.children("feature_data"):
        domain, name = entry.text("domain"), entry.text("name")
        if domain not in ("node", "edge"):
            left.append(f"{domain} {name}")
            continue
        of = entry.text("type")
        if of not in known:
            raise FormatError(f"{entry.name}: {of!r} is no type of {METADATA}")
        features.setdefault(of, []).append(entry.file(name))
    tasks = [_typed_task(entry, number) for number, entry in enumerate(root.children("tasks"))]
    return TypedMetadata(sizes, files, features, tasks, left)


def edge_type_of(text: str, name: str) -> EdgeTypeName:
    """Returns the edge type that GraphBolt writes as ``source:relation:target``. Raises FormatError for another."""
    parts = text.split(":")
    if len(parts) != 3 or not all(parts):
        raise FormatError(f"{name}: type is {text!r}; source:relation:target is needed")
    return parts[0], parts[1], parts[2]


def _typed_task(entry: _Entry, number: int) -> TypedTask:
    name, classes = entry.text("name", f"task {number}"), entry.number("num_classes")
    by_type: dict[str, Task] = {}
    for split, key in SETS.items():
        for group in entry.children(key):
            of = group.text("type", group.text("type_name", ""))
            task = by_type.setdefault(of, Task(name, classes, {}))
            if split in task.sets:
                raise FormatError(f"{group.name}: type {of!r} is listed twice")
            task.sets[split] = _data_of(group)
    return TypedTask(name, by_type)


def _data_of(group: _Entry) -> dict[str, DataFile]:
    """Returns the files of a set by what they hold."""
    data = group.children("data")
    names = [item.text("name", _ORDER[min(at, len(_ORDER) - 1)]) for at, item in enumerate(data)]
    return {name: item.file(name) for name, item in zip(names, data, strict=True)}


def _task(entry: _Entry, number: int) -> Task:
    sets = {}
    for split, key in SETS.items():
        groups = entry.children(key)
        if len(groups) > 1:
            refuse_typed(str(entry.folder), f"{entry.name}: {key} lists {len(groups)} types")
        if groups:
            sets[split] = _data_of(groups[0])
    return Task(entry.text("name", f"task {number}"), entry.number("num_classes"), sets)

"""Import of N-Triples, against plain Python, and against what PyTorch Geometric makes of AIFB."""

from __future__ import annotations

import csv
import gzip
import re
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from outcrop.importing.graph import import_graph
from outcrop.store.graph import Graph
from support import held_bytes, new_runtime, shared_path
from table_oracle import in_order

TRIPLES = """# people
<http://x/ann> <http://x/o#knows> <http://x/bob> .
<http://x/bob> <http://x/o#knows> _:b1 .

<http://x/bob> <http://y/o#knows> <http://x/ann> . # known under another name
\t<http://x/ann>\t<http://x/o/worksFor>\t<http://x/l\\u00e4b>\t.
<http://x/bob> <http://x/o/worksFor> <http://x/l\u00e4b>.
<http://x/ann> <http://x/o#name> "Ann \\"A.\\" <b> ." .
<http://x/bob> <http://x/o#name> "Bob"@en-GB .
_:b1 <http://x/o#age> "7"^^<http://x/int> .
<http://x/ann> <http://x/o#knows> <http://x/bob> .
"""
NAMES = ["http://x/ann", "http://x/bob", "_:b1", "http://x/läb"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "people.nt"
    path.write_text(TRIPLES)
    return path


def imported(path: Path, memory: str = "8MiB", **options) -> Graph:
    out = path.with_name("refused.oc")
    return import_graph(f"ntriples:{path}", out, new_runtime(memory), oc.ImportConfig(**options))


def read(graph: Graph, name: str) -> np.ndarray:
    return graph.array(new_runtime(), name).read("test")


@pytest.mark.parametrize("packed", [True, False])
def test_relations_become_edge_types(file, packed):
    if packed:
        file.unlink()
        file = file.with_name("people.nt.gz")
        file.write_bytes(gzip.compress(TRIPLES.encode()))
    graph = imported(file)
    assert [(one.name, one.num_nodes) for one in graph.node_types] == [("entity", 4)]
    assert graph.node_names() == NAMES
    edges = {one.relation: graph.edge_index(one).tolist() for one in graph.edge_types}
    assert edges == {
        "http_//x/o#knows": [[0, 1], [1, 2]],
        "worksFor": [[0, 1], [3, 3]],
        "http_//y/o#knows": [[1], [0]],
        "rev_http_//x/o#knows": [[1, 2], [0, 1]],
        "rev_worksFor": [[3, 3], [0, 1]],
        "rev_http_//y/o#knows": [[0], [1]],
    }
    assert any("3 triples that end at literals" in note for note in graph.notes)
    assert file.name in str(graph.notes)


def test_literals_are_kept_where_they_are_asked_for(file):
    graph = imported(file, types="all")
    assert graph.node_names()[4:] == ['"Ann \\"A.\\" <b> ."', '"Bob"@en-GB', '"7"^^<http://x/int>']
    assert graph.edge_index(("entity", "age", "entity")).tolist() == [[2], [6]]
    assert not any("literals" in note for note in graph.notes)


def test_labels_and_splits(file):
    (file.parent / "trainingSet.tsv").write_text(
        "id\tperson\tlabel_of\n1\thttp://x/bob\tred\n2\thttp://x/läb\tblue\n"
    )
    (file.parent / "testSet.tsv").write_text("id\tperson\tlabel_of\n1\t_:b1\tred\n")
    graph = imported(file.parent)
    assert read(graph, "n0.labels").tolist() == [-1, 1, 1, 0]
    assert graph.class_names == ("blue", "red")
    assert [read(graph, f"n0.{split}").tolist() for split in ("train", "test")] == [[1, 3], [2]]
    (file.parent / "testSet.tsv").write_text("person\tlabel\n_:b1\t1\n")
    (file.parent / "trainingSet.tsv").write_text("person\tlabel\nhttp://x/ann\t0\n")
    graph = imported(file)
    assert read(graph, "n0.labels").tolist() == [0, -1, 1, -1]
    assert graph.class_names == ()


def test_a_byte_order_mark_is_none_of_the_first_name(file):
    out = file.with_name("plain.oc"), file.with_name("marked.oc")
    import_graph(f"ntriples:{file}", out[0], new_runtime("8MiB"), oc.ImportConfig())
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    import_graph(f"ntriples:{file}", out[1], new_runtime("8MiB"), oc.ImportConfig())
    plain, marked = map(oc.open_graph, out)
    assert [one.key for one in plain.edge_types] == [one.key for one in marked.edge_types]
    for one, other in zip(plain.edge_types, marked.edge_types, strict=True):
        assert np.array_equal(plain.edge_index(one), marked.edge_index(other))
    assert plain.node_names() == marked.node_names()


def refused(path: Path, match: str, **options) -> None:
    runtime, out = new_runtime("8MiB"), path.with_name("refused.oc")
    with pytest.raises((oc.ArgumentError, oc.FormatError), match=match):
        import_graph(f"ntriples:{path}", out, runtime, oc.ImportConfig(**options))
    assert held_bytes(runtime) == 0
    assert not out.exists()


@pytest.mark.parametrize(
    "line",
    ["<a> <b> <c>", "<a> <b> .", "<a> _:b <c> .", "<a> <b> c .", '"a" <b> <c> .', '<a> <b> "c .', "<a b> <b> <c> .",
     "<a> <b> <c> . <d>", "<a> <b> <\\U00110000> .", "<a> <b> <\\ud800> .", "<a> <b> <c> <d> .",
     '<a> <b> "c\\" .', '<a> <b> "c" "d" .', '<a> <b> "c"@ .', '<a> <b> "c"^^d .'],
)  # fmt: skip
def test_what_is_no_triple_is_named(file, line):
    file.write_text(f"{TRIPLES}{line}\n{TRIPLES}")
    refused(file, rf"people\.nt, line 12: {re.escape(repr(line)[:20])}.*is no triple")


@pytest.mark.parametrize("name", ["long.nt", "long.nt.gz"])
def test_a_line_is_not_read_beyond_the_budget(file, name):
    """A small file may unpack to one line without end. Of 4 MiB of memory 1/32 is read at a time."""
    path, inside, beyond = file.with_name(name), 100 << 10, 16 << 20
    for count, fits in ((inside, True), (beyond, False)):
        text = f'<a> <b> <c> .\n<c> <b> "{"x" * count}" .\n'.encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        if fits:
            assert imported(path, "4MiB").num_nodes == 2
            continue
        tracemalloc.start()
        try:
            with pytest.raises(
                oc.FormatError, match=r"long\.nt(\.gz)?, line 2 is longer than the .*--memory"
            ):
                import_graph(
                    f"ntriples:{path}", path.with_name("o.oc"), new_runtime("4MiB"), oc.ImportConfig()
                )
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


def test_literals_with_many_escapes_take_little_memory(file):
    escapes = chr(92) * 2_000_000
    file.write_text(f'<a> <b> <c> .\n<c> <b> "{escapes}"@en . # " comment\n')
    tracemalloc.start()
    try:
        graph = imported(file, "256MiB", types="all")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert graph.node_names()[-1] == f'"{escapes}"@en'


def test_what_is_torn_is_named(file):
    packed = file.with_name("people.nt.gz")
    whole = gzip.compress(TRIPLES.encode() * 50)
    packed.write_bytes(whole[: len(whole) // 2])
    refused(packed, r"people\.nt\.gz is torn, or is not what gzip compressed \(after line")
    packed.write_bytes(b"no gzip")
    refused(packed, r"people\.nt\.gz is torn")
    file.write_bytes(TRIPLES.encode()[:-20])
    refused(file, r"people\.nt, line 11: .*is no triple")
    file.write_bytes(b"<a> <b> <\xff> .\n")
    refused(file, r"people\.nt, line 1: .*is no triple")


def test_other_mistakes_are_named(file):
    (file.parent / "trainingSet.tsv").write_text("who\tlabel\nhttp://x/ann\ta\nhttp://x/eve\tb\n")
    refused(file, r"trainingSet\.tsv, line 3, column 'who' names 'http://x/eve', which no triple names")
    (file.parent / "testSet.tsv").write_text("who\tlabel\nhttp://x/ann\tb\n")
    (file.parent / "trainingSet.tsv").write_text("who\tlabel\nhttp://x/ann\ta\n")
    refused(
        file, r"testSet\.tsv, line 2, column 'who' has label 'b', and .*trainingSet\.tsv, line 2.* has 'a'"
    )
    (file.parent / "testSet.tsv").write_text("who\tlabel\nhttp://x/ann\ta\n")
    refused(file, r"testSet\.tsv.*node 0 is in split train and in split test")
    (file.parent / "testSet.tsv").write_text("who\tclass\nhttp://x/ann\ta\n")
    refused(
        file, r"testSet\.tsv has no column with labels, whose name begins with 'label' \(it has who, class\)"
    )
    file.write_text('<a> <b> "c" .\n')
    refused(file, r"people\.nt has no triples between entities")
    refused(file.parent / "none.nt", r"none\.nt is not there: name the file")
    file.with_name("b.nt").write_text("")
    refused(file.parent, r"has 2 files \*\.nt")


def test_types_are_for_sources_that_leave_some_out(tmp_path):
    np.save(tmp_path / "e.npy", np.array([[0, 1]]))
    with pytest.raises(oc.ArgumentError, match=r"--types\) is for igb, ntriples"):
        oc.import_graph(
            f"edges:{tmp_path / 'e.npy'}", tmp_path / "g", oc.ImportConfig(types="all"), progress=False
        )
    with pytest.raises(oc.ArgumentError, match="types 'some' is not 'all'"):
        oc.ImportConfig(types="some")  # pyright: ignore[reportArgumentType]


def test_bytes_do_not_depend_on_the_budget_and_peak_is_inside(tmp_path):
    (tmp_path / "in").mkdir()
    rng = np.random.default_rng(0)
    ends, relations = rng.integers(0, 5000, (40_000, 2)).tolist(), rng.integers(0, 9, 40_000).tolist()
    path = tmp_path / "in" / "many.nt"
    path.write_text("".join(f"<e{a}> <r{r}> <e{b}> .\n" for (a, b), r in zip(ends, relations, strict=True)))
    out = tmp_path / "g.oc"
    with pytest.raises(oc.BudgetError) as error:
        oc.import_graph(f"ntriples:{path}", out, memory="64KiB", progress=False)
    least = error.value.smallest
    assert least is not None
    digests = []
    for memory in (least, 64 << 20):
        made = oc.import_graph(f"ntriples:{path}", out, memory=memory, overwrite=True, progress=False)
        digests.append(made.digest())
    assert len(set(digests)) == 1


def test_aifb_is_what_others_make_of_it(tmp_path):
    folder = shared_path("aifb")
    out = tmp_path / "g.oc"
    graph = import_graph(f"ntriples:{folder}", out, new_runtime("32MiB"), oc.ImportConfig(types="all"))
    assert [one.num_nodes for one in graph.node_types] == [8285]
    assert len(graph.edge_types) == 90
    assert graph.num_edges == 2 * 29_043
    words = re.compile(r"(\S+) <(\S+)> (.+) \.$")
    with gzip.open(folder / "aifb_stripped.nt.gz", "rt", encoding="utf-8") as file:
        triples = [found.groups() for line in file if (found := words.match(line.strip()))]
    numbers: dict[str, int] = {}
    for subject, _, thing in triples:
        numbers.setdefault(subject, len(numbers))
        numbers.setdefault(thing, len(numbers))
    names = graph.node_names()
    assert len(numbers) == len(names)
    by_relation: dict[str, list] = {}
    for subject, relation, thing in triples:
        by_relation.setdefault(relation, []).append((numbers[subject], numbers[thing]))
    last = Counter(re.split("[/#]", relation)[-1] for relation in by_relation)
    for relation in list(by_relation):
        short = re.split("[/#]", relation)[-1]
        by_relation[short if last[short] == 1 else relation.replace(":", "_")] = by_relation.pop(relation)
    for one in graph.edge_types[:45]:
        edges = in_order(np.array(by_relation[one.relation]).T)
        assert np.array_equal(graph.edge_index(one), edges)
        assert np.array_equal(
            graph.edge_index(("entity", f"rev_{one.relation}", "entity")), in_order(edges[::-1])
        )
    for split, name in (("train", "trainingSet.tsv"), ("test", "testSet.tsv")):
        with (folder / name).open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        people = graph.node_ids([row["person"] for row in rows])
        assert np.array_equal(read(graph, f"n0.{split}"), np.sort(people))
        labels = read(graph, "n0.labels")[people]
        assert [graph.class_names[label] for label in labels] == [row["label_affiliation"] for row in rows]


def test_aifb_has_the_edges_of_a_file_of_pytorch_geometric(tmp_path):
    path = shared_path("samples-pyg-pt", "hetero_data.pt")
    given = oc.import_graph(f"pyg:{path}", tmp_path / "pyg.oc", progress=False)
    assert len(given.edge_types) == 90
    source = f"ntriples:{shared_path('aifb')}"
    made = oc.import_graph(source, tmp_path / "g.oc", oc.ImportConfig(types="all"), progress=False)

    def sizes(graph: Graph) -> Counter[int]:
        return Counter(one.num_edges for one in graph.edge_types)

    assert sizes(given) == sizes(made)

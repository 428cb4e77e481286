"""Refused memory budgets of imports: what the first refusal names works to the end, and a byte less is refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import outcrop as oc
from dgl_files import BY_TARGET, write_homogeneous
from foreign_layouts import foreign_graph, write_graphbolt, write_igb, write_ogb_arrays, write_ogb_text
from outcrop.cli.main import app
from outcrop.errors import BudgetError, FormatError
from outcrop.importing import import_budget
from outcrop.importing.import_budget import smallest_of_need
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.runtime import Runtime

Source = tuple[Any, oc.ImportConfig]  # what is imported, and the options
NODES, EDGES = 3000, 12_000


def pairs(nodes: int = NODES, edges: int = EDGES) -> np.ndarray:
    return np.random.default_rng(1).integers(0, nodes, (edges, 2))


def rows(width: int, nodes: int = NODES) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((nodes, width)).astype(np.float32)


def names(count: int = NODES, length: int = 8) -> list[str]:
    return [f"{'n' * (length - 6)}{number:06}" for number in range(count)]


def edges_npy(folder: Path) -> Source:
    np.save(folder / "e.npy", pairs())
    return f"edges:{folder / 'e.npy'}", oc.ImportConfig(reverse=True)


def edges_csv(folder: Path) -> Source:
    pa_csv.write_csv(pa.table({"src": pairs()[:, 0], "dst": pairs()[:, 1]}), folder / "e.csv")
    return f"edges:{folder / 'e.csv'}", oc.ImportConfig(num_nodes=NODES + 7, train_fraction=0.5)


def edges_of_many_names(folder: Path) -> Source:
    """2 MiB of names: they are held beside what sorting takes, which is a share of the budget."""
    words = np.array(names(10_000))[pairs(10_000, 30_000)]
    pq.write_table(pa.table({"from": words[:, 0], "to": words[:, 1]}), folder / "e.parquet")
    return f"edges:{folder / 'e.parquet'}", oc.ImportConfig()


def arrays(folder: Path) -> Source:
    np.save(folder / "edges.npy", pairs().T)
    np.save(folder / "edge_weight.npy", np.ones(EDGES, np.float32))
    np.save(folder / "features.npy", rows(37))
    np.save(folder / "labels.npy", np.arange(NODES) % 1500 * 3)
    for split, part in (("train", slice(0, 100)), ("valid", slice(100, 200)), ("test", slice(200, 3000))):
        np.save(folder / f"{split}.npy", np.arange(NODES)[part])
    np.save(folder / "train_edges.npy", pairs(NODES, 50))
    return f"arrays:{folder}", oc.ImportConfig(feature_dtype="float16")


def wide_rows(folder: Path) -> Source:
    """A row is larger than what is read at a time."""
    np.save(folder / "edges.npy", pairs(20, 60))
    np.save(folder / "features.npy", rows(200_000, 20))
    return f"arrays:{folder}", oc.ImportConfig()


def few_bits(folder: Path) -> Source:
    """Rows are read twice."""
    np.save(folder / "edges.npy", pairs())
    np.save(folder / "features.npy", rows(300).astype(np.float64))
    return f"arrays:{folder}", oc.ImportConfig(feature_dtype="uint4", scale="column")


def few_bits_by_id(folder: Path) -> Source:
    return tables_by_id(folder)[0], oc.ImportConfig(feature_dtype="int8", scale="row")


def tables_by_id(folder: Path) -> Source:
    words, order = np.array(names()), np.random.default_rng(3).permutation(NODES)
    labels = [f"class {n % 5}" for n in range(NODES)]
    pq.write_table(pa.table({"id": words, "label": labels}), folder / "nodes.parquet")
    ends = words[pairs()]
    pa_csv.write_csv(pa.table({"src": ends[:, 0], "dst": ends[:, 1]}), folder / "edges.csv")
    shuffled = {f"f{i}": rows(9)[order, i] for i in range(9)}
    pa_csv.write_csv(pa.table({"id": words[order], **shuffled}), folder / "features.csv")
    split = ["train" if n % 2 else "test" for n in range(NODES)]
    pa_csv.write_csv(pa.table({"id": words, "split": split}), folder / "splits.csv")
    return f"arrays:{folder}", oc.ImportConfig()


def numbers_by_id(folder: Path) -> Source:
    """Ids with gaps; labels of some of the nodes, in any order."""
    ids = np.arange(NODES) * 10
    pa_csv.write_csv(pa.table({"id": ids}), folder / "nodes.csv")
    np.save(folder / "edges.npy", ids[pairs()])
    pq.write_table(pa.table({"id": ids[::-2].copy(), "y": np.arange(1500) % 7}), folder / "labels.parquet")
    return f"arrays:{folder}", oc.ImportConfig(split_protocol="per-class")


def archive(folder: Path) -> Source:
    adjacency = sp.csr_matrix((np.ones(EDGES), pairs().T), (NODES, NODES))
    attributes = sp.random(NODES, 600, 0.01, "csr", np.float32, np.random.default_rng(0))
    parts = {
        f"{prefix}_{part}": value
        for prefix, matrix in (("adj", adjacency), ("attr", attributes))
        for part, value in (
            ("data", matrix.data),
            ("indices", matrix.indices),
            ("indptr", matrix.indptr),
            ("shape", np.array(matrix.shape)),
        )
    }
    np.savez(folder / "a.npz", **parts, labels=np.arange(NODES) % 4)
    return f"npz:{folder / 'a.npz'}", oc.ImportConfig()


def heterophilous(folder: Path) -> Source:
    masks = np.arange(NODES)[None] % 3 == np.zeros((2, 1))
    np.savez(
        folder / "h.npz",
        edges=pairs(),
        node_features=rows(11),
        node_labels=np.arange(NODES) % 4,
        train_masks=masks,
        val_masks=np.roll(masks, 1, 1),
        test_masks=np.roll(masks, 2, 1),
    )
    return f"npz:{folder / 'h.npz'}", oc.ImportConfig(split_index=1)


def scipy_coo(folder: Path) -> Source:
    sp.save_npz(folder / "m.npz", sp.coo_matrix((np.ones(EDGES), pairs().T), (NODES, NODES)))
    return f"scipy:{folder / 'm.npz'}", oc.ImportConfig()


def matlab(folder: Path) -> Source:
    network = sp.csc_matrix((np.ones(EDGES), pairs().T), (NODES, NODES))
    group = sp.csc_matrix(np.arange(NODES)[:, None] % 6 == np.arange(6))
    scipy.io.savemat(
        folder / "b.mat", {"network": network, "group": group.astype(float), "features": rows(5)}
    )
    return f"mat:{folder / 'b.mat'}", oc.ImportConfig()


def musae(folder: Path) -> Source:
    pa_csv.write_csv(pa.table({"id_1": pairs()[:, 0], "id_2": pairs()[:, 1]}), folder / "x_edges.csv")
    kinds = [["tv", "company"][n % 2] for n in range(NODES)]
    pa_csv.write_csv(pa.table({"id": np.arange(NODES), "page_type": kinds}), folder / "x_target.csv")
    lists = {str(n): sorted({n % 300, n % 7, (n * n) % 300}) for n in range(NODES)}
    (folder / "x.json").write_text(json.dumps(lists))
    return f"musae:{folder}", oc.ImportConfig()


def ogb_text(folder: Path) -> Source:
    made = foreign_graph(NODES, EDGES, 21)
    return f"ogb:{write_ogb_text(folder / 'ogbl_collab', made, weights=True)}", oc.ImportConfig()


def graphbolt(folder: Path) -> Source:
    made = foreign_graph(NODES, EDGES, 21)
    return f"graphbolt:{write_graphbolt(folder / 'gb', made, form='csv', classes=9)}", oc.ImportConfig()


def igb(folder: Path) -> Source:
    made = foreign_graph(500, 2000, 1024, 19)
    return f"igb:{write_igb(folder / 'tiny', made, raw=True)}", oc.ImportConfig(feature_dtype="float16")


def ogb_arrays(folder: Path) -> Source:
    return (
        f"ogb:{write_ogb_arrays(folder / 'ogbl_vessel', foreign_graph(NODES, EDGES, 21))}",
        oc.ImportConfig(),
    )


def pyg_file(folder: Path) -> Source:
    """Labels are an array of NumPy, which a file of this protocol holds as text."""
    given = {"edge_index": torch.tensor(pairs().T), "x": torch.tensor(rows(12)), "y": np.arange(NODES) % 4}
    torch.save(given | {"train_mask": torch.arange(NODES) < 100}, folder / "d.pt")
    return f"pyg:{folder / 'd.pt'}", oc.ImportConfig()


def pyg_adjacency(folder: Path) -> Source:
    matrix = sp.csr_matrix((np.ones(EDGES, np.float32), pairs().T), (NODES, NODES))
    lists = (torch.tensor(part) for part in (matrix.indptr, matrix.indices, matrix.data))
    torch.save({"adj_t": torch.sparse_csr_tensor(*lists, matrix.shape)}, folder / "d.pt")
    return f"pyg:{folder / 'd.pt'}", oc.ImportConfig()


def dgl_file(folder: Path) -> Source:
    columns = {"feat": rows(12), "label": np.arange(NODES) % 4, "train_mask": np.arange(NODES) < 100}
    weight = np.ones(EDGES, np.float32)
    write_homogeneous(folder / "g.bin", pairs(), columns, NODES, BY_TARGET, weight=weight)
    return f"dgl:{folder / 'g.bin'}", oc.ImportConfig()


def keyed_tables(folder: Path) -> Source:
    """Text keys, sparse integers, and a node type of nothing but keys."""
    users = {"id": names(), "boss": np.array(names())[pairs()[:NODES, 0]], "age": np.arange(NODES) % 90}
    pa_csv.write_csv(pa.table(users), folder / "user.csv")
    pq.write_table(pa.table({"id": 7 * np.arange(NODES), "price": rows(1)[:, 0]}), folder / "item.parquet")
    bought = {"user": np.array(names())[pairs()[:, 0]], "item": 7 * pairs()[:, 1], "shop": pairs()[:, 0] % 99}
    pa_csv.write_csv(pa.table(bought), folder / "bought.csv")
    user = '[[tables]]\nname = "user"\nfile = "user.csv"\nkey = "id"\n'
    item = '[[tables]]\nname = "item"\nfile = "item.parquet"\nkey = "id"\n'
    keys = 'foreign_keys = { user = "user", item = "item", shop = "shop" }'
    shops = '[[tables]]\nname = "shop"\nfrom_keys = true\n'
    fact = f'[[tables]]\nname = "bought"\nfile = "bought.csv"\n{keys}\n'
    links = '[[links]]\nfile = "bought.csv"\nsource = "user"\nrelation = "buys"\ntarget = "item"\n'
    links += 'source_column = "user"\ntarget_column = "item"\nfeatures = ["shop"]\n'
    (folder / "tables.toml").write_text(
        f'{user}foreign_keys = {{ boss = "user" }}\n{item}{fact}{shops}{links}'
    )
    return f"tables:{folder}", oc.ImportConfig()


def database(folder: Path) -> Source:
    with closing(sqlite3.connect(folder / "d.sqlite")) as made, made:
        made.execute("CREATE TABLE user (id TEXT PRIMARY KEY, age REAL, about TEXT)")
        made.executemany(
            "INSERT INTO user VALUES (?, ?, ?)", [(name, n / 7, name) for n, name in enumerate(names())]
        )
        made.execute("CREATE TABLE knows (a TEXT REFERENCES user, b TEXT REFERENCES user)")
        made.executemany("INSERT INTO knows VALUES (?, ?)", np.array(names())[pairs()].tolist())
    return f"tables:{folder}", oc.ImportConfig()


def objects(folder: Path) -> Source:
    masks = {split: np.arange(NODES) % 3 == n for n, split in enumerate(("train", "valid", "test"))}
    return {"edges": pairs(), "features": rows(12), "labels": rows(2), **masks}, oc.ImportConfig()


def frames(folder: Path) -> Source:
    words = np.array(names())
    ends = words[pairs()]
    edges = pa.table({"source": ends[:, 0], "target": ends[:, 1], "weight": np.ones(EDGES)})
    return {"edges": edges, "nodes": pa.table({"id": words, "split": ["train"] * NODES})}, oc.ImportConfig()


def networkx(folder: Path) -> Source:
    graph = nx.from_edgelist(pairs(500, 2000).tolist())
    return graph, oc.ImportConfig()


SOURCES: list[Callable[[Path], Source]] = [
    edges_npy,
    edges_csv,
    edges_of_many_names,
    arrays,
    wide_rows,
    few_bits,
    few_bits_by_id,
    tables_by_id,
    numbers_by_id,
    archive,
    heterophilous,
    scipy_coo,
    matlab,
    musae,
    ogb_text,
    ogb_arrays,
    igb,
    graphbolt,
    pyg_file,
    pyg_adjacency,
    dgl_file,
    keyed_tables,
    database,
    objects,
    frames,
    networkx,
]


def refused(call: Callable[[int], Any], memory: int) -> BudgetError:
    with pytest.raises(BudgetError) as error:
        call(memory)
    return error.value


def follow(call: Callable[[int], Any], *more: int) -> int:
    """Takes the advice of a refusal of one byte: it works; refusals of a byte less and of ``more`` give the same."""
    first = refused(call, 1)
    least = first.smallest
    assert least is not None, str(first)
    assert f"the smallest budget that can is {least} bytes (" in str(first)
    call(least)
    for memory in (least - 1, *(n for n in more if n < least)):
        assert refused(call, memory).smallest == least, memory
    return least


@pytest.mark.quick_cases(9)
@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_the_first_refusal_names_what_works(tmp_path: Path, make: Callable[[Path], Source]) -> None:
    (tmp_path / "in").mkdir()
    source, options = make(tmp_path / "in")
    out = tmp_path / "g"

    def call(memory: int) -> oc.Graph:
        return oc.import_graph(source, out, options, memory=memory, overwrite=True, progress=False)

    least = follow(call, 16_384, 278_528, 1_589_248, 1_675_264)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g", "in"]
    made = oc.open_graph(out)
    for more in (2 * least, 64 << 20):
        again = call(more)
        assert (again.num_nodes, again.num_edges) == (made.num_nodes, made.num_edges)
        if make is not edges_of_many_names:  # which are numbered block by block
            assert again.digest() == made.digest()


@pytest.mark.parametrize("count", [100, 20_000])
def test_triples(tmp_path: Path, count: int) -> None:
    words = np.array(names(count, 12))
    for split, edges in (("train", 3 * count), ("valid", 200)):
        ends = words[pairs(count, edges)]
        lines = [f"{a}\tr{n % 50}\t{b}\n" for n, (a, b) in enumerate(ends.tolist())]
        (tmp_path / f"{split}.txt").write_text("".join(lines))

    def call(memory: int) -> Any:
        return oc.import_triples(tmp_path, tmp_path / "kg", memory=memory, overwrite=True, progress=False)

    least = follow(call, 20_000, 400_000)
    assert (least > 1 << 20) == (count > 1000)  # 1.6 MB of names


def test_the_command_names_what_works(tmp_path: Path) -> None:
    """Text and all: the number, and the size beside it, which is rounded up."""
    (tmp_path / "in").mkdir()
    source, _ = edges_csv(tmp_path / "in")
    (tmp_path / "train.txt").write_text("a\tlikes\tb\nb\tlikes\tc\n")
    for where in (source, f"triples:{tmp_path}"):
        command = ["import", where, str(tmp_path / "g"), "--overwrite", "--quiet", "--memory"]
        error = CliRunner().invoke(app, [*command, "16384"]).exception
        assert isinstance(error, BudgetError)
        text = str(error)
        assert text.startswith(
            f"a memory budget of 16384 bytes (16.0 KiB) cannot import {where}; the smallest"
        )
        number, size = text.split("budget that can is ")[1].split(" bytes (")
        for memory in (number, size.rstrip(")")):
            done = CliRunner().invoke(app, [*command, memory])
            assert done.exit_code == 0, done.exception
        assert isinstance(CliRunner().invoke(app, [*command, str(int(number) - 1)]).exception, BudgetError)


def test_what_was_there_stays_and_nothing_is_written_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    source, options = arrays(tmp_path / "in")
    oc.import_graph(source, tmp_path / "g", options, progress=False)
    before = {path.name: path.read_bytes() for path in (tmp_path / "g").iterdir()}
    written: list[int] = []

    class Counted(Runtime):
        def close(self) -> None:
            written.append(self.io.counters.write_bytes)
            super().close()

    monkeypatch.setattr(import_budget, "Runtime", Counted)
    with pytest.raises(BudgetError):
        oc.import_graph(source, tmp_path / "g", options, memory=1, overwrite=True, progress=False)
    assert 3 <= len(written) <= 8  # what was refused, too
    assert sum(written) <= len(written) * 3 * 2 * 4096  # the empty topology: 3 arrays, and checksums
    assert {path.name: path.read_bytes() for path in (tmp_path / "g").iterdir()} == before


def test_streams_that_are_read_once_are_not_used_up(tmp_path: Path) -> None:
    reader = pa.table({"src": pairs()[:, 0], "dst": pairs()[:, 1]}).to_reader()
    for source in (reader, {"edges": reader}):
        with pytest.raises(BudgetError) as error:
            oc.import_graph(source, tmp_path / "g", memory=1, progress=False)
        assert error.value.smallest is None
    assert oc.import_graph(reader, tmp_path / "g", progress=False).num_edges > 0


class Interrupting(SilentProgress):
    """Interrupts what is measured."""

    def start(self, task: str, total: int, unit: str) -> None:
        if "for the smallest budget" in task:
            raise KeyboardInterrupt


def test_refusals_without_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted measurement, more than the machine has, a source that is bad: the refusal comes as it was."""
    source, _ = edges_npy(tmp_path)

    def call(**options: Any) -> BudgetError:
        with pytest.raises(BudgetError, match="cannot hold another") as error:
            oc.import_graph(source, tmp_path / "g", memory=1, **{"progress": False, **options})
        return error.value

    assert call(progress=Interrupting()).smallest is None
    assert call(config=oc.ImportConfig(split_protocol="per-class")).smallest is None  # there are no labels
    monkeypatch.setattr(import_budget.system, "available_memory", lambda: 1 << 20)
    assert call().smallest is None
    np.save(tmp_path / "e.npy", np.zeros((3, 3), int))
    with pytest.raises(FormatError):
        oc.import_graph(source, tmp_path / "g", progress=False)


def by_hand(need: Callable[[int], int], refused: int) -> int:
    return next(n for n in range(refused + 1, 1 << 20) if need(n) <= n)


@settings(max_examples=200, deadline=None)
@given(
    fixed=st.integers(1, 20_000),
    beside=st.integers(0, 20_000),
    divisor=st.integers(2, 64),
    most=st.integers(0, 30_000),
    least=st.integers(0, 900),
    refused=st.integers(1, 20_000),
)
def test_the_smallest_of_a_need_that_rises(
    fixed: int, beside: int, divisor: int, most: int, least: int, refused: int
) -> None:
    """The larger of two phases: one that takes what it takes, one that takes a share of the budget besides."""

    def need(budget: int) -> int:
        return max(fixed, beside + min(most, max(least, budget // divisor)))

    if need(refused) <= refused:
        assert smallest_of_need(refused, need) is None
        return
    assert smallest_of_need(refused, need) == by_hand(need, refused)


def test_few_measurements_are_enough() -> None:
    """Two where the need is the same for all budgets, a few where names lie beside a share of half."""
    for fixed, beside, expected in ((1_700_000, 0, 2), (1_700_000, 600_000_000, 8)):
        measured: list[int] = []

        def need(budget: int, fixed: int = fixed, beside: int = beside) -> int:
            measured.append(budget)  # noqa: B023
            return max(fixed, beside + max(budget - (1 << 20), 1 << 19) // 2 if beside else 0)

        least = smallest_of_need(1, need)
        assert least is not None
        assert need(least) <= least
        assert need(least - 1) > least - 1
        assert len(measured) - 2 <= expected


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,))
@given(data=st.data())
def test_whatever_is_imported_the_named_budget_works(data: Any, tmp_path_factory: Any) -> None:
    draw, folder = data.draw, tmp_path_factory.mktemp("import")
    nodes = draw(st.sampled_from((1, 30, 1000, 20_000, 60_000)))
    ends = pairs(nodes, draw(st.sampled_from((0, 1, 500, 50_000))))
    parts: dict[str, Any] = {"edges": ends, "num_nodes": nodes}
    if draw(st.booleans()):
        words = np.array(names(nodes, draw(st.integers(6, 60))))
        parts = {"edges": pa.table({"src": words[ends[:, 0]], "dst": words[ends[:, 1]]})}
        if not len(ends) or draw(st.booleans()):  # without either there are no nodes, which is refused
            parts["nodes"] = pa.table({"id": words})
    if len(parts) > 1:  # else it is not known which row is whose
        parts["features"] = rows(draw(st.sampled_from((1, 40, 300))), nodes)
        parts["labels"] = np.arange(nodes) % draw(st.sampled_from((1, 40, 10**6)))
    options = oc.ImportConfig(
        reverse=draw(st.booleans()), split_protocol=draw(st.sampled_from(("none", "fractions")))
    )

    def call(memory: int) -> oc.Graph:
        return oc.import_graph(parts, folder / "g", options, memory=memory, overwrite=True, progress=False)

    follow(call, draw(st.integers(1, 4 << 20)))

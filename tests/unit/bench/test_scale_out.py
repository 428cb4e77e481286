"""What each of several machines does: against counts over the records of the run, batch by batch and row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor_support import a_profile
from outcrop.bench import machines, scale_out
from outcrop.bench.epoch import Setting
from outcrop.bench.graphs import GraphShape
from outcrop.bench.scale_out import ScaleOut
from outcrop.errors import ArgumentError
from outcrop.runtime.runtime import Runtime
from outcrop.store.placement import open_placement
from outcrop.store.samples import open_samples

# Sixteen rows of 256 bytes are a page: so chunks begin at a row, and end at one.
SHAPE = GraphShape("tiny", nodes=20_000, edges=200_000, features=64, train_fraction=0.02)
SETTING = Setting(SHAPE, fanouts="5,5", batch_size=20, cap=0.6, hidden=16)
ROW_BYTES, PAGE_BYTES, HOPS, PARTS = 256, 4096, 3, 6
MACHINES = (1, 2, 3, 6)


def silent(text: str) -> None:
    assert text


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("scale-out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scale_out.machine, "profile_of", lambda folder: a_profile({}))
        return scale_out.run(folder, ScaleOut(SETTING, MACHINES), silent), folder


class Batches:
    """What the batches of the run want, read from its records: (part, split, ids of rows that are packed, hop)."""

    def __init__(self, run: Path):
        with Runtime() as runtime:
            samples, placement = open_samples(runtime, run / "sample"), open_placement(runtime, run / "plan")
            self.cached = placement.files[0].host_ids
            self.epoch = list(samples.group("train").batches(0))
            number = {
                batch: at
                for group in samples.groups.values()
                for at, batch in enumerate(group.all_batches())  # of one epoch
            }
            buffer = runtime.budget.empty("test", samples.max_record_bytes)
            self.part, self.packed, self.record_bytes = {}, {}, {}
            for place, batch in enumerate(placement.packed_batches.tolist()):
                ids = np.array(samples.read(batch, buffer).nodes[0].ids)
                assert len(ids) == len(set(ids.tolist()))
                self.part[batch] = number[batch] % PARTS
                self.packed[batch] = np.setdiff1d(ids, self.cached)
                self.record_bytes[batch] = int(placement.offsets[place + 1] - placement.offsets[place])

    def wanted(self) -> list[np.ndarray]:
        """Ids that each owner writes, with repeats: of the parts, then of the cache."""
        of_part = [[ids for batch, ids in self.packed.items() if self.part[batch] == p] for p in range(PARTS)]
        return [*(np.concatenate(own) for own in of_part), self.cached]

    def streams(self) -> list[int]:
        counts = [HOPS * sum(part == p for part in self.part.values()) for p in range(PARTS)]
        return [*counts, 1]


def shares(batches: Batches, count: int) -> list[dict[str, int]]:
    """Counts of each machine, one row after another."""
    budget = SHAPE.nodes * ROW_BYTES // (4 * PARTS)
    pages = budget * ROW_BYTES // (ROW_BYTES + 16) // PAGE_BYTES
    rows = pages * PAGE_BYTES // ROW_BYTES
    chunks = -(-SHAPE.nodes // rows)
    wants, streams = batches.wanted(), batches.streams()
    table = np.stack([np.bincount(ids // rows, minlength=chunks) for ids in wants])  # rows: [owner, chunk]
    expected = []
    for machine in range(count):
        chunks_here = [c for c in range(chunks) if c % count == machine]
        owners_here = [o for o in range(PARTS + 1) if o % count == machine]
        elsewhere = [o for o in range(PARTS + 1) if o % count != machine]
        far = [c for c in range(chunks) if c % count != machine]
        gathered = int(table[:, chunks_here].sum())
        sent, received = (
            int(table[np.ix_(elsewhere, chunks_here)].sum()),
            int(table[np.ix_(owners_here, far)].sum()),
        )
        size = {c: min(rows, SHAPE.nodes - c * rows) * ROW_BYTES for c in chunks_here}
        task = max(size[c] + int(table[:, c].sum()) * (ROW_BYTES + 8) + 8 * sum(streams) for c in chunks_here)
        owning = sum(int(table[o].max()) * ROW_BYTES for o in owners_here)
        tables = sum(streams[o] * ((chunks + 1) * 4 + chunks * 4 + 16) + chunks for o in owners_here)
        expected.append(
            {
                "chunks": len(chunks_here),
                "bytes_read": sum(size.values()),
                "rows_bytes_gathered": gathered * ROW_BYTES,
                "rows_bytes_kept": (gathered - sent) * ROW_BYTES,
                "rows_bytes_sent": sent * ROW_BYTES,
                "rows_bytes_received": received * ROW_BYTES,
                "ids_bytes_received": sent * 8,
                "ids_bytes_sent": received * 8,
                "bytes_written": int(table[owners_here].sum()) * ROW_BYTES,
                "pieces": int((table[owners_here] > 0).sum()),
                "tables": len(owners_here),
                "table_bytes": tables,
                "peak_bytes": task + owning,
            }
        )
    return expected


def test_preparing_is_what_the_records_say(found: tuple[dict[str, Any], Path]) -> None:
    result, folder = found
    batches = Batches(folder / "scale-out.run")
    assert len(batches.cached) > 500
    total = sum(map(len, batches.wanted()))
    assert result["packed_bytes"] + result["cache_bytes"] == total * ROW_BYTES
    for case in result["cases"]:
        want = shares(batches, case["machines"])
        each = case["prepare"]["each"]
        assert [{name: one[name] for name in want[0]} for one in each] == want
        assert all(one["reads"] >= one["chunks"] and one["writes"] >= one["pieces"] for one in each)
        most = max(one["bytes_written"] for one in want)
        assert case["prepare"]["most"]["bytes_written"] == most
        mean = sum(one["bytes_written"] for one in want) / len(want)
        assert case["prepare"]["imbalance"]["bytes_written"] == pytest.approx(most / mean)
        formula = total * ROW_BYTES * (1 - 1 / case["machines"])
        assert case["rows_bytes_of_formula"] == round(formula)
        assert case["rows_bytes_sent"] == pytest.approx(formula, rel=0.05)
        assert case["ids_bytes_sent"] * ROW_BYTES == case["rows_bytes_sent"] * 8
        assert case["cache_bytes_copied"] == len(batches.cached) * ROW_BYTES * (case["machines"] - 1)


def test_training_is_what_the_records_say(found: tuple[dict[str, Any], Path]) -> None:
    """Batch n of an epoch is of machine n % 6 % machines; gradients go in pieces of whole values."""
    result, folder = found
    batches = Batches(folder / "scale-out.run")
    values = 2 * (64 * 16 + 16 * SHAPE.config.classes) + 16 + SHAPE.config.classes
    assert result["gradient_bytes"] == 4 * values
    assert result["batches"] == len(batches.epoch) == 20
    for case in result["cases"]:
        count, want = case["machines"], []
        for machine in range(count):
            own = [n for n in range(20) if n % PARTS % count == machine]
            steps = [sum(first <= n < first + PARTS for n in own) for first in range(0, 20, PARTS)]
            piece = 4 * -(-values // count)
            sent = [(rows * piece + piece) * (count - 1) for rows in steps]
            want.append(
                {
                    "batches": len(own),
                    "bytes_read": sum(batches.record_bytes[batches.epoch[n]] for n in own),
                    "gradient_bytes_sent": sum(sent),
                    "gradient_bytes_of_a_step": max(sent),
                }
            )
        assert [{name: one[name] for name in want[0]} for one in case["train"]["each"]] == want


def test_times_are_of_the_rates_and_the_network(found: tuple[dict[str, Any], Path]) -> None:
    result, _ = found
    disk, write, network = (result[f"{name}_bytes_per_s"] for name in ("disk", "write", "network"))
    assert network == 25e9 / 8
    for case in result["cases"]:
        most, steps = case["prepare"]["most"], 4
        files = most["bytes_read"] / disk + most["bytes_written"] / write
        moved = most["rows_bytes_sent"] / network
        assert case["prepare_seconds"] == pytest.approx(result["draw_seconds"] + max(files, moved))
        sent = case["train"]["most"]["gradient_bytes_of_a_step"] * steps / network
        latencies = 2 * steps * 50e-6 if case["machines"] > 1 else 0
        assert case["exchange_seconds"] == pytest.approx(sent + latencies, rel=0.01)
    epochs = [case["epoch_seconds"] for case in result["cases"]]
    assert epochs == sorted(epochs, reverse=True)
    assert [len(row) for row in result["rows"]] == [len(result["columns"])] * len(MACHINES)


def test_what_is_counted_wrong_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_out.machine, "profile_of", lambda folder: a_profile({}))
    monkeypatch.setattr(
        machines.PackedShare, "rows_bytes_kept", property(lambda one: 0, lambda one, value: None)
    )
    with pytest.raises(AssertionError, match="rows kept and sent: 0 bytes were counted"):
        scale_out.run(tmp_path, ScaleOut(SETTING, (1,)), silent)


def test_more_machines_than_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_out.machine, "profile_of", lambda folder: a_profile({}))
    with pytest.raises(ArgumentError, match="fewer batches than the 64 machines"):
        scale_out.run(tmp_path, ScaleOut(SETTING, (64,)), silent)
    with pytest.raises(ArgumentError, match="are none"):
        ScaleOut(SETTING, (0, 2))

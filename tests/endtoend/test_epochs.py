"""New batches in every epoch: what is prepared for them, in which disk space, and what replaying says."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import small_graph
from outcrop.advisor import epochs_at_a_time as epoch_choice
from outcrop.api.train import TrainReport, train
from outcrop.config import PlanConfig, SampleConfig, parse_size
from outcrop.errors import BudgetError, OutcropWarning
from outcrop.report.collect import collect_run
from outcrop.report.runs import run_page
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.runtime import Runtime
from outcrop.store import samples
from outcrop.store.graph import Graph
from prepare_support import prepare
from weight_support import imported

SAMPLING: dict[str, Any] = {"fanouts": (3, 3), "batch_size": 15, "seed": 4}
LEARNING: dict[str, Any] = {"hidden": 8, "trace_losses": True, "dropout": 0.3, "memory": "2MiB"}
EPOCHS = 3


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return small_graph(tmp_path / "graph")


def trained(graph: Graph, **changes: Any) -> TrainReport:
    run = {} if "run" in changes else SAMPLING
    return train(graph, **{"epochs": EPOCHS, **run, "seed": SAMPLING["seed"], **LEARNING, **changes})


def losses(report: TrainReport) -> tuple[list[float], list[float | None], float | None]:
    return report.batch_losses, [e["valid_accuracy"] for e in report.epochs], report.test_accuracy


def seeds_of(run: Path) -> list[list[int]]:
    """Seeds of every training epoch, in the order of the batches."""
    found = []
    with Runtime() as runtime:
        sample_set = samples.open_samples(runtime, run / "sample")
        buffer = np.zeros(sample_set.max_record_bytes, np.uint8)
        group = sample_set.group("train")
        for epoch in range(group.first_epoch, group.first_epoch + group.epochs):
            batches = [sample_set.read(b, buffer) for b in group.batches(epoch)]
            found.append([int(node) for b in batches for node in b.n_id[: b.num_seeds]])
        sample_set.files.close()
    return found


def test_packed_prepares_every_epoch_in_one_pass_over_the_features(graph: Graph, tmp_path: Path) -> None:
    said: list[str] = []
    report = trained(graph, on_choice=said.append)
    assert said == ["new batches in every epoch: 3 epochs are prepared at once"]
    assert (report.chosen, report.prepared_epochs, report.distinct_epochs) == (said[0], EPOCHS, EPOCHS)
    assert [e["distinct_batches"] for e in report.epochs] == [True] * EPOCHS
    assert sum(e["prepare_seconds"] for e in report.epochs) == pytest.approx(report.prepare["seconds"])
    found = seeds_of(graph.path.with_name("graph.run"))
    with Runtime() as runtime:
        wanted = sorted(graph.split(runtime, "train").tolist())
    assert [sorted(seeds) for seeds in found] == [wanted] * EPOCHS  # all nodes each time,
    assert len({tuple(seeds) for seeds in found}) == EPOCHS  # in other batches
    # Packing reads the features once, and once more what was sampled: no pass for each epoch.
    read = report.prepare["stages"]["pack"]["bytes_read"]
    sampled = sum(f.stat().st_size for f in (graph.path.with_name("graph.run") / "sample").iterdir())
    assert graph.feature_bytes <= read <= 1.1 * graph.feature_bytes + 2 * sampled
    again = trained(graph, epochs=2)  # a run of more epochs does
    assert again.prepare["skipped"] == ["sample", "plan", "pack"]
    assert again.batch_losses == report.batch_losses[: len(again.batch_losses)]


def test_a_training_that_goes_on_prepares_the_epochs_to_come(graph: Graph, tmp_path: Path) -> None:
    """It learns what one does that was never interrupted, and a run that has them is taken as it is."""
    kept, run = oc.Checkpoints(tmp_path / "kept"), graph.path.with_name("graph.run")
    trained(graph, epochs=2, checkpoint=kept)
    of_two = seeds_of(run)
    longer = trained(graph, epochs=5, checkpoint=kept)
    assert longer.chosen.startswith("new batches in every epoch: 3 epochs are prepared at once\n")
    assert (longer.prepared_epochs, longer.distinct_epochs, longer.resumed_from) == (3, 5, 2)
    assert [e["distinct_batches"] for e in longer.epochs[2:]] == [True] * 3
    of_three = seeds_of(run)
    # One that was never interrupted prepares all of them: the same batches.
    other = small_graph(tmp_path / "other")
    whole = trained(other, epochs=5)
    every = seeds_of(other.path.with_name("other.run"))
    assert [*of_two, *of_three] == every
    assert longer.batch_losses == whole.batch_losses
    assert longer.test_accuracy == whole.test_accuracy
    # Ended within the third of six, it takes the run that has all.
    half = oc.Checkpoints(tmp_path / "half")
    trained(other, epochs=2, checkpoint=half)
    again = trained(other, epochs=4, checkpoint=half)
    assert "pack" not in again.prepare["stages"]  # nothing was
    assert (again.prepared_epochs, seeds_of(other.path.with_name("other.run"))) == (5, every)
    # A training from the start finds the last three of five, and needs all.
    anew = trained(graph, epochs=5)
    assert anew.batch_losses == whole.batch_losses
    assert seeds_of(run) == every


def test_a_run_of_later_epochs_is_replayed_from_the_start(graph: Graph, tmp_path: Path) -> None:
    """As somebody names the run that a longer training has left, and trains anew: it says that it replays."""
    kept = oc.Checkpoints(tmp_path / "kept")
    trained(graph, epochs=2, checkpoint=kept)
    trained(graph, epochs=4, checkpoint=kept)
    again = oc.Checkpoints(tmp_path / "again")
    for epochs in (4, 5):  # and goes on
        with pytest.warns(OutcropWarning, match=f"has 2 epochs prepared, {epochs} are trained"):
            report = trained(graph, run=graph.path.with_name("graph.run"), epochs=epochs, checkpoint=again)
        assert report.distinct_epochs == 2
        assert [e["distinct_batches"] for e in report.epochs[-epochs:]][:4] == [True, True, False, False]


def test_a_training_in_pools_goes_on_in_pools(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what is left would fit the disk at once: the pools are there, and take disk."""
    size = epoch_choice.EpochBytes(200 << 10, 100 << 10, 0, 0)  # four at once, or two in each of two pools
    monkeypatch.setattr(epoch_choice, "most_bytes", lambda *_: size)
    monkeypatch.setattr(epoch_choice, "measured_bytes", lambda *_: size)
    options: dict[str, Any] = {"epochs": 6, "disk_space": "1000KiB", "mode": "packed"}

    class Stop(oc.Callback):
        def on_epoch(self, epoch: int, values: dict[str, Any]) -> None:
            if epoch == 3:
                raise KeyboardInterrupt

    whole = trained(small_graph(tmp_path / "other"), **options)
    assert whole.prepared_epochs == 2
    kept = oc.Checkpoints(tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        trained(graph, **options, checkpoint=kept, callbacks=[Stop()])
    watch = _Most(tmp_path)
    report = trained(graph, **options, checkpoint=kept, progress=watch)
    assert (report.prepared_epochs, report.resumed_from) in ((2, 3), (2, 4))
    assert not graph.path.with_name("graph.run").exists()
    assert watch.most <= 1000 << 10
    assert report.batch_losses[-4:] == whole.batch_losses[-4:]


def test_every_mode_draws_the_same_new_batches(graph: Graph, tmp_path: Path) -> None:
    want = losses(trained(graph))
    assert len(set(want[0])) == EPOCHS * 4
    for mode in ("online", "memory", "memmap", "ondisk", "dynamic", "partition"):
        report = trained(graph, mode=mode, **({"memory": "64MiB"} if mode in ("memory", "partition") else {}))
        assert losses(report) == want, mode
        assert (report.distinct_epochs, report.prepared_epochs) == (EPOCHS, None)
        assert [(e["distinct_batches"], e["prepare_seconds"]) for e in report.epochs] == [
            (True, 0.0)
        ] * EPOCHS
    prepare(graph, tmp_path / "run", epochs=EPOCHS, memory="2MiB", **SAMPLING)
    for mode in ("packed", "belady"):
        assert losses(trained(graph, mode=mode, run=tmp_path / "run")) == want, mode
    replayed = trained(graph, sample_epochs=1)
    assert losses(replayed) == losses(trained(graph, mode="memory", memory=None, sample_epochs=1)) != want
    assert [e["distinct_batches"] for e in replayed.epochs] == [True, False, False]
    assert "replayed in all 3" in replayed.chosen


class _Most(SilentProgress):
    """Looks at how much lies in a folder."""

    def __init__(self, folder: Path):
        self.folder, self.most = folder, 0

    def advance(self, task: str, amount: int) -> None:
        files = [f.stat().st_size for f in self.folder.glob("graph.[pr]*/**/*") if f.is_file()]
        self.most = max(self.most, sum(files))


def test_where_the_disk_has_no_room_as_many_as_fit(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = losses(trained(graph, mode="memory", memory=None, epochs=5))
    size = epoch_choice.EpochBytes(200 << 10, 100 << 10, 0, 0)
    monkeypatch.setattr(epoch_choice, "most_bytes", lambda *_: size)
    monkeypatch.setattr(epoch_choice, "measured_bytes", lambda *_: size)
    watch = _Most(tmp_path)
    report = trained(graph, epochs=5, disk_space="1000KiB", progress=watch)
    assert losses(report) == want
    assert "2 of 5 epochs are prepared at a time" in report.chosen
    assert [pool["first_epoch"] for pool in report.pools] == [0, 2, 4]
    assert report.prepared_epochs == 2
    assert 200 << 10 < watch.most <= 1000 << 10
    seconds = report.prepare["seconds"] + sum(pool["waited_seconds"] for pool in report.pools)
    assert sum(e["prepare_seconds"] for e in report.epochs) == pytest.approx(seconds)
    assert all(e["distinct_batches"] for e in report.epochs)


def test_what_is_counted_of_weights_is_never_less_than_what_is_written(tmp_path: Path) -> None:
    graph, limits = imported(tmp_path / "w.oc"), PlanConfig()
    config = SampleConfig((6, 4), 40, degrees=True, edge_weights=True)
    observer = oc.Observer(progress=False)
    run = oc.prepare(graph, tmp_path / "r", sampling=config, epochs=3, observer=observer)
    made = sum(file.stat().st_size for file in run.path.rglob("*.bin"))
    most = epoch_choice.most_bytes(graph, config, limits)
    assert most is not None
    assert made <= epoch_choice.measured_bytes(graph, config, limits).run(3) <= most.run(3)


def test_what_is_counted_is_never_less_than_what_is_written(graph: Graph, tmp_path: Path) -> None:
    """The bound from the fanouts, and what a few batches say, against the files."""
    for memory in (None, 2 << 20):
        limits, config = PlanConfig(memory=memory), SampleConfig((3, 3), 15, seed=4)
        most = epoch_choice.most_bytes(graph, config, limits)
        measured = epoch_choice.measured_bytes(graph, config, limits)
        assert most is not None
        for count in (1, 3):
            run = tmp_path / f"{memory}-{count}"
            made = prepare(graph, run, memory=memory, epochs=count, **SAMPLING).disk_bytes
            assert made <= measured.run(count) <= most.run(count)
            assert measured.fitting_with_test(measured.run(count) - measured.evaluation) == count
    assert epoch_choice.most_bytes(graph, SampleConfig((3, -1)), limits) is None
    assert epoch_choice.most_bytes(graph, SampleConfig(sampler="shadow"), limits) is None


def test_what_is_counted_of_narrow_rows_is_never_less_than_what_is_written(tmp_path: Path) -> None:
    """Rows of users have fewer than 64 bytes, so no cache holds them while those of items are cached."""
    random, source = np.random.default_rng(0), tmp_path / "shop"
    source.mkdir()
    np.save(source / "user.npy", random.random((3000, 15), np.float32))
    np.save(source / "item.npy", random.random((300, 32), np.float32))
    np.save(source / "labels.npy", random.integers(0, 3, 3000))
    np.save(source / "follows.npy", random.integers(0, 3000, (30_000, 2)))
    np.save(source / "bought_by.npy", random.integers(0, (300, 3000), (6000, 2)))
    np.save(source / "train.npy", np.arange(2000))
    (source / "graph.toml").write_text(_SHOP)
    graph = oc.import_graph(f"arrays:{source}", tmp_path / "g.oc", progress=False)
    sampling, limits = SampleConfig((5, 5), 100, seed=4), PlanConfig(memory=4 << 20)
    observer = oc.Observer(progress=False)
    run = oc.prepare(graph, tmp_path / "r", sampling=sampling, epochs=2, memory="4MiB", observer=observer)
    made = sum(file.stat().st_size for file in run.path.rglob("*.bin"))
    measured = epoch_choice.measured_bytes(graph, sampling, limits)
    assert made <= measured.run(2) <= 1.5 * made
    assert "in up to about" in epoch_choice.for_training(graph, sampling, limits, 2, tmp_path / "other").why


_SHOP = """
[[nodes]]
name = "user"
features = "user.npy"
labels = "labels.npy"
train = "train.npy"

[[nodes]]
name = "item"
features = "item.npy"

[[edges]]
source = "user"
relation = "follows"
target = "user"
file = "follows.npy"

[[edges]]
source = "item"
relation = "bought_by"
target = "user"
file = "bought_by.npy"
"""


@pytest.mark.parametrize("memory", ["2MiB", None])
def test_too_little_disk_names_what_does(graph: Graph, memory: str | None) -> None:
    with pytest.raises(BudgetError, match=r"--disk-space \d+ .* is enough") as refused:
        trained(graph, mode="packed", disk_space="200KiB", memory=memory)
    assert refused.value.smallest == int(str(refused.value).split("--disk-space ")[1].split()[0])
    assert trained(graph, mode="packed", disk_space=refused.value.smallest, memory=memory).epochs
    left = sum(path.stat().st_size for path in graph.path.parent.rglob("graph.*/**/*") if path.is_file())
    assert left <= refused.value.smallest


@pytest.mark.parametrize("disk_space", ["60KiB", "150KiB", "300KiB", "500KiB"])
@pytest.mark.parametrize("memory", ["2MiB", None])
def test_what_does_not_fit_the_disk_is_drawn_as_it_is_needed(
    graph: Graph, tmp_path: Path, disk_space: str, memory: str | None
) -> None:
    """Without a mode; what lies on the disk meanwhile stays within the limit, and nothing that was given up is left."""
    want = losses(trained(graph, mode="memory", memory=None))
    watch = _Most(tmp_path)
    report = trained(graph, disk_space=disk_space, progress=watch, memory=memory)
    assert losses(report) == want
    assert watch.most <= parse_size(disk_space)
    if report.mode == "online":
        assert "mode online instead: there is too little disk to prepare a run" in report.chosen
        assert sorted(path.name for path in tmp_path.iterdir()) == ["graph"]


def test_prepare_has_ten_epochs_or_as_many_as_fit(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"memory": "2MiB", **SAMPLING}
    assert prepare(graph, tmp_path / "run", **options).epochs == len(seeds_of(tmp_path / "run")) == 10
    monkeypatch.setattr(epoch_choice, "most_bytes", lambda *_: None)
    said: list[str] = []
    report = prepare(graph, tmp_path / "few", **options, disk_space="2MiB", on_choice=said.append)
    assert 1 <= report.epochs < 10
    assert report.epochs == len(seeds_of(tmp_path / "few"))
    assert [report.chosen] == said
    assert "prepared instead of 10: each takes about" in said[0]
    assert report.disk_bytes <= 2 << 20
    # What was begun with another number goes on with it.
    prepare(graph, tmp_path / "one", epochs=1, stop_after="sample", **options)
    report = prepare(graph, tmp_path / "one", **options)
    assert report.epochs == 1
    assert "was begun with 1 epoch and keeps to it" in report.chosen


def test_training_longer_than_a_run_says_once_that_it_replays(graph: Graph, tmp_path: Path) -> None:
    prepare(graph, tmp_path / "run", epochs=2, memory="2MiB", **SAMPLING)
    said: list[str] = []
    report = trained(graph, run=tmp_path / "run", on_choice=said.append)
    assert [line for line in said if "2 epochs prepared, 3 are trained" in line] == [report.chosen]
    assert "outcrop prepare --epochs 3" in report.chosen
    assert [e["distinct_batches"] for e in report.epochs] == [True, True, False]
    assert (report.distinct_epochs, report.prepared_epochs) == (2, 2)
    page = run_page(collect_run(tmp_path / "run"))
    assert "Epochs with new batches" in page
    assert "2 of 3" in page
    with pytest.warns(OutcropWarning, match="batches are replayed"):
        trained(graph, run=tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutcropWarning)
        assert trained(graph, run=tmp_path / "run", epochs=2).chosen == ""


def test_a_checkpoint_that_replays_goes_on_so(graph: Graph, tmp_path: Path) -> None:
    """What was trained before new batches were the default, with nothing said, is one epoch replayed."""
    want = losses(trained(graph, sample_epochs=1))
    trained(graph, sample_epochs=1, epochs=2, checkpoint=tmp_path / "ckpt")
    report = trained(graph, checkpoint=tmp_path / "ckpt")
    assert losses(report) == want
    assert "goes on so" in report.chosen
    fresh = trained(graph, checkpoint=tmp_path / "ckpt", resume=False)
    assert losses(fresh) != want
    longer = trained(graph, checkpoint=tmp_path / "ckpt", epochs=5)  # and new batches go on with new ones
    assert longer.distinct_epochs == 5
    assert losses(longer) == losses(trained(graph, epochs=5, mode="online"))

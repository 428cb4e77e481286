"""Validation while embeddings are trained: what is ranked when, what is kept, and that it changes nothing learned."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from embed_support import knowledge_graph, random_triples, table_of
from outcrop.embed import model as model_of
from outcrop.embed import rankings, validation
from outcrop.embed.buckets import open_buckets
from outcrop.embed.model import EmbeddingModel
from outcrop.embed.rankings import FILE, EpochRanks, RankList
from outcrop.embed.training import EmbeddingTrainer

CONFIG = oc.EmbedConfig("distmult", dim=8, epochs=6, negatives=20, chunk=50, batch=200, start=0.1, buffer=2)
NODES = 300


@pytest.fixture
def run(tmp_path: Path, make_runtime) -> Path:
    """Buckets of 6 partitions that nothing was trained on."""
    triples = random_triples(NODES, 4, 6000)
    graph = knowledge_graph(tmp_path, make_runtime(), train=triples, valid=triples[:600])
    made = oc.embed_prepare(graph, tmp_path / "run", oc.BucketConfig(6, slices=2), progress=False)
    return made.path.parent


def train(run: Path, validated: dict | None = None, **options) -> oc.EmbedReport:
    config = replace(CONFIG, **(validated or {}), **options.pop("trained", {}))
    options.setdefault("resident", False)
    return oc.embed_train(run, config, observer=oc.Observer(progress=False), **options)


def every(epochs: int, **more) -> dict:
    return {"evaluate_every": epochs, **more}


def copy_of(run: Path, name: str) -> Path:
    return Path(shutil.copytree(run, run.with_name(name)))


def vectors(run: Path, epoch: str, tmp_path: Path) -> np.ndarray:
    oc.embed_export(run, out=tmp_path / f"vectors-{run.name}-{epoch}", epoch=epoch, progress=False)
    return np.load(tmp_path / f"vectors-{run.name}-{epoch}" / "entities.npy")


@pytest.mark.parametrize("resident", [True, False])
def test_it_changes_nothing_that_is_learned(run, resident, make_runtime):
    without = copy_of(run, "without")
    plain = train(without, resident=resident)
    ranked = train(run, every(2), resident=resident)
    for want, got in zip(
        table_of(without, make_runtime()), table_of(run, make_runtime(), "last"), strict=True
    ):
        np.testing.assert_array_equal(want, got)
    assert [e["loss"] for e in plain.epochs] == [e["loss"] for e in ranked.epochs]
    assert ranked.resident is resident
    assert ranked.resumed_epoch is None
    assert (plain.rankings, plain.best_epoch) == ([], None)


def test_it_ranks_as_eval_does_of_a_training_that_ends_there(run, tmp_path):
    ranked = train(run, every(3), trained={"epochs": 5})
    assert [one["epoch"] for one in ranked.rankings] == [2, 4]  # the last epoch always has one
    for one in ranked.rankings:
        alone = copy_of(run, f"alone-{one['epoch']}")
        train(alone, fresh=True, trained={"epochs": one["epoch"] + 1})
        found = oc.embed_eval(alone, "valid", progress=False)
        assert (one["mrr"], one["mean_rank"]) == (found.mrr, found.mean_rank)
        assert one["hits"] == {str(k): share for k, share in found.hits.items()}
        assert found.epoch == one["epoch"]


def test_the_best_vectors_are_those_of_the_best_epoch(run, tmp_path, monkeypatch):
    # The ranks are told, not found: then the best is neither the first nor the last.
    alone = copy_of(run, "alone")
    fall_after(3, monkeypatch)
    ranked = train(run, every(1))
    assert ranked.best_epoch == 3
    assert sorted(path.name for path in run.iterdir()) == ["best-3", "buckets", "tables", FILE]
    monkeypatch.undo()
    train(alone, trained={"epochs": 4})
    np.testing.assert_array_equal(vectors(run, "best", tmp_path), vectors(alone, "last", tmp_path))
    assert oc.embed_eval(run, "valid", progress=False).epoch == 3
    assert oc.embed_eval(run, "valid", epoch="last", progress=False).epoch == 5
    near = oc.embed_neighbors(run, "n5", metric="euclidean")
    assert near == oc.embed_neighbors(alone, "n5", metric="euclidean")
    train(alone, trained={"epochs": 6})
    np.testing.assert_array_equal(vectors(run, "last", tmp_path), vectors(alone, "best", tmp_path))


def fall_after(best: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ranks better up to epoch ``best``, and then worse."""
    real = validation.evaluate

    def told(model, *args, **options):
        epoch = model.epochs - 1
        return replace(real(model, *args, **options), mrr=0.5 - 0.01 * abs(epoch - best))

    monkeypatch.setattr(validation, "evaluate", told)


def test_it_ends_when_patience_does_and_goes_on_with_more(run, make_runtime, monkeypatch):
    fall_after(2, monkeypatch)
    whole = copy_of(run, "whole")
    stopped = train(run, every(1, patience=2))
    assert [one["epoch"] for one in stopped.rankings] == [0, 1, 2, 3, 4]
    assert (stopped.stopped_early, stopped.best_epoch, len(stopped.epochs)) == (True, 2, 5)
    again = train(run, every(1, patience=2))
    assert (again.stopped_early, again.resumed_epoch, again.rankings) == (True, 5, stopped.rankings)
    on = train(run, every(1, patience=9))
    assert (on.stopped_early, on.resumed_epoch, len(on.rankings)) == (False, 5, 6)
    train(whole)
    np.testing.assert_array_equal(
        table_of(run, make_runtime(), "last")[0], table_of(whole, make_runtime())[0]
    )


def test_a_training_that_goes_on_without_it_has_no_best_vectors(run, tmp_path, monkeypatch):
    fall_after(1, monkeypatch)
    train(run, every(2), trained={"epochs": 4})
    assert oc.embed_eval(run, "valid", progress=False).epoch == 1
    train(run, trained={"epochs": 5})
    assert oc.embed_eval(run, "valid", progress=False).epoch == 4
    # Ranked again, it counts again.
    assert train(run, every(2)).best_epoch == 1
    assert oc.embed_eval(run, "valid", progress=False).epoch == 1


def test_training_anew_forgets_what_was_ranked(run):
    train(run, every(1), trained={"epochs": 2})
    train(run, fresh=True, trained={"epochs": 3, "seed": 1})
    assert sorted(path.name for path in run.iterdir()) == ["buckets", "tables"]
    ranked = train(run, every(5, candidates=10), fresh=True)
    assert [one["epoch"] for one in ranked.rankings] == [4, 5]


def test_without_keep_best_no_vectors_are_kept(run, monkeypatch):
    fall_after(1, monkeypatch)
    ranked = train(run, every(1, keep_best=False), trained={"epochs": 3})
    assert ranked.best_epoch == 1
    assert sorted(path.name for path in run.iterdir()) == ["buckets", "tables", FILE]
    assert oc.embed_eval(run, "valid", progress=False).epoch == 2


def test_what_was_kept_takes_the_disk_of_the_table_once(run, monkeypatch):
    train(run, every(1), trained={"epochs": 3})
    (kept,) = run.glob("best-*")
    blocks = (kept / "tables.bin").stat().st_blocks * 512
    assert (kept / "tables.bin").stat().st_size == (run / "tables" / "tables.bin").stat().st_size
    assert blocks <= (kept / "tables.bin").stat().st_size / 2 + 4096


@pytest.mark.parametrize("at", ["copied", "kept", "named"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_training_that_ends_in_between_goes_on(run, at, number, make_runtime, monkeypatch):
    """Ends like a kill while vectors are copied; when they are, and are not named; and when they are named, while those
    before are there: at the first ranking, and at the last, where the same command has nothing left to train."""
    whole = copy_of(run, "whole")
    want = train(whole, every(1), trained={"epochs": 3})
    assert want.best_epoch == 2
    left = number

    def at_last(real):
        def end(*args, **options):
            nonlocal left
            if at == "copied" or (args[1:] and args[1].rankings):
                left -= 1
                if not left:
                    if at == "named":
                        monkeypatch.setattr(rankings.shutil, "rmtree", lambda *_a, **_o: None)
                        real(*args, **options)
                    raise KeyboardInterrupt
            return real(*args, **options)

        return end

    name = "_copy_slices" if at == "copied" else "write"
    monkeypatch.setattr(validation, name, at_last(getattr(validation, name)))
    with pytest.raises(KeyboardInterrupt):
        train(run, every(1), trained={"epochs": 3})
    monkeypatch.undo()
    assert len(list(run.glob("best-*"))) == (1 if number == 1 else 2)
    got = train(run, every(1), trained={"epochs": 3})
    assert (got.rankings, got.best_epoch) == (want.rankings, want.best_epoch)
    assert {path.name for path in run.iterdir()} == {path.name for path in whole.iterdir()}
    assert (run / FILE).read_bytes() == (whole / FILE).read_bytes()
    for epoch in ("best", "last"):
        np.testing.assert_array_equal(
            table_of(run, make_runtime(), epoch)[0], table_of(whole, make_runtime(), epoch)[0]
        )


def test_a_disk_that_is_full_leaves_nothing_half_kept(run, monkeypatch):
    def full(_source, out, _slab):
        out.touch()
        raise oc.IoError(28, f"{out}: No space left on device")

    monkeypatch.setattr(validation, "_copy_slices", full)
    with pytest.raises(oc.IoError, match="No space left"):
        train(run, every(1))
    assert sorted(path.name for path in run.iterdir()) == ["buckets", "tables"]
    monkeypatch.undo()
    assert train(run, trained={"epochs": 2}).resumed_epoch == 1


def test_a_checkpoint_within_an_epoch_is_not_ranked(run, make_runtime):
    """As of a training without rankings that was killed: edges are ranked when the epoch is at its end."""
    whole = copy_of(run, "whole")
    want = train(whole, every(1), trained={"epochs": 3})

    def end(epoch, unit, _loss):
        if epoch == 1 and unit.number > 3:
            raise KeyboardInterrupt

    buckets = open_buckets(run)
    fit = EmbeddingTrainer(
        buckets, run, CONFIG, make_runtime(), resident=True, checkpoint_seconds=0, on_unit=end
    )
    with pytest.raises(KeyboardInterrupt):
        fit.run()
    fit.close()
    found = oc.embed_eval(run, "valid", progress=False)
    assert (found.epoch, found.within_epoch) == (1, True)
    got = train(run, every(1), trained={"epochs": 3})
    assert [one["epoch"] for one in got.rankings] == [1, 2]
    assert got.rankings == want.rankings[1:]


def test_vectors_that_are_no_numbers_do_not_rank(run, monkeypatch):
    """They would compare as the best of all."""
    train(run, trained={"epochs": 1})
    real = EmbeddingModel.slices

    def diverged(model):
        for first, rows in real(model):
            rows[0, 0] = np.nan
            yield first, rows

    monkeypatch.setattr(EmbeddingModel, "slices", diverged)
    for options in ({}, {"candidates": 2000}):
        with pytest.raises(oc.NumericError, match="infinite or not a number: the training diverged"):
            oc.embed_eval(run, "valid", progress=False, **options)
    with pytest.raises(oc.NumericError, match="diverged"):
        train(run, every(1))
    assert not (run / FILE).exists()


def test_another_interval_counts_from_then_on(run, monkeypatch):
    fall_after(0, monkeypatch)
    train(run, every(1), trained={"epochs": 2})
    fit_to = {"epochs": 4}
    with monkeypatch.context() as broken:

        def end(*_args, **_options):
            raise KeyboardInterrupt

        broken.setattr(validation, "evaluate", end)
        with pytest.raises(KeyboardInterrupt):
            train(run, every(5), trained=fit_to)
    assert oc.embed_eval(run, "valid", progress=False).epoch == 0  # none was left out


def test_vectors_are_kept_that_were_not_to_be(run, monkeypatch):
    """Where they are those of the last checkpoint."""
    fall_after(9, monkeypatch)
    without = train(run, every(1, keep_best=False), trained={"epochs": 2})
    assert (without.best_epoch, without.best_kept) == (1, False)
    kept = train(run, every(1), trained={"epochs": 2})
    assert (kept.best_epoch, kept.best_kept) == (1, True)
    assert kept.rankings == without.rankings
    assert [path.name for path in run.glob("best-*")] == ["best-1"]


def test_other_candidates_do_not_compare(run):
    train(run, every(1, candidates=50), trained={"epochs": 2})
    with pytest.raises(oc.ArgumentError, match=r"among 50 nodes drawn uniformly before.*among all nodes"):
        train(run, every(1))
    assert len(train(run, every(1, candidates=50)).rankings) == 6


def test_edges_that_are_not_there_are_missed_before_training(tmp_path, make_runtime):
    graph = knowledge_graph(tmp_path, make_runtime(), train=random_triples(50, 2, 300))
    made = oc.embed_prepare(graph, tmp_path / "run", progress=False)
    with pytest.raises(oc.ArgumentError, match="holds no valid edges"):
        train(made.path.parent, every(1))
    assert not (tmp_path / "run" / "tables").exists()


@pytest.mark.parametrize("wrong", [{"evaluate_every": 0}, {"patience": 0}, {"candidates": 0}])
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(oc.ArgumentError, match=f"{next(iter(wrong))} 0 is below 1"):
        replace(CONFIG, **wrong)


@pytest.mark.parametrize("alone", [{"candidates": 5}, {"keep_best": False}])
def test_options_that_would_do_nothing_are_refused(alone):
    with pytest.raises(oc.ArgumentError, match="are about evaluate_every or patience"):
        replace(CONFIG, **alone)
    assert replace(CONFIG, patience=2, **alone).ranked_every == 1


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda told: told | {"every": 7}, oc.ChecksumError, "says other than was written"),
        (lambda told: told | {"version": 9}, oc.FormatError, "no list of rankings of this version"),
        (lambda told: [], oc.FormatError, "no list of rankings"),
    ],
)
def test_a_damaged_list_is_named(run, change, error, said):
    train(run, every(1), trained={"epochs": 2})
    told = json.loads((run / FILE).read_text())
    (run / FILE).write_text(json.dumps(change(told)))
    for call in (lambda: oc.embed_eval(run, "valid", progress=False), lambda: train(run)):
        with pytest.raises(error, match=rf"validation\.json.*{said}.*remove"):
            call()
    assert oc.embed_eval(run, "valid", epoch="last", progress=False).epoch == 1
    train(run, fresh=True, trained={"epochs": 2})
    assert oc.embed_eval(run, "valid", progress=False).epoch == 1


def test_a_list_that_lies_with_its_checksum_is_refused(run):
    train(run, every(1), trained={"epochs": 2})
    ranking = EpochRanks(1, 0.5, 3.0, {"1": 0.1, "3": 0.2, "10": 0.3})
    for told in (
        RankList("x", 1, [replace(ranking, mrr="high")], 1),
        RankList("x", 1, [replace(ranking, hits=[])], 1),
        RankList("x", 1, [replace(ranking, mrr=10**400)], 1),
        RankList("x", 1, [replace(ranking, mrr=float("nan"))], 1),
        RankList("x", 1, [replace(ranking, epoch=float("inf"))], None),
        RankList("x", 0, [ranking], 1),
        RankList("x", 1, [ranking, ranking], 1),
        RankList("x", 1, [ranking], 10**300),
        RankList("x", 1, [ranking], -1),
        RankList("x", 1, [ranking], 0),
        RankList("x", 1, [ranking], "../../tables"),
    ):
        shutil.rmtree(run / "best-1", ignore_errors=True)
        rankings.manifests.write_atomic(run / FILE, content_of(told))
        with pytest.raises(oc.FormatError, match="lacks or garbles a field"):
            oc.embed_eval(run, "valid", progress=False)
    rankings.manifests.write_atomic(run / FILE, content_of(RankList("x", 1, [ranking], 1)))
    with pytest.raises(oc.FormatError, match=r"best-1/checkpoint\.safetensors is missing"):
        oc.embed_eval(run, "valid", progress=False)


def content_of(stored: RankList) -> bytes:
    told = {"format": rankings.FORMAT, "version": rankings.VERSION, **stored.__dict__}
    told["rankings"] = [dict(one.__dict__) for one in stored.rankings]
    told["sha256"] = rankings.manifests.checksum_of(told)
    return json.dumps(told).encode()


def test_vectors_of_another_training_are_not_taken(run):
    other = copy_of(run, "other")
    train(run, every(1), trained={"epochs": 2})
    train(other, every(1), trained={"epochs": 2, "seed": 5})
    (kept,) = run.glob("best-*")
    shutil.rmtree(kept)
    shutil.copytree(next(other.glob("best-*")), kept)
    with pytest.raises(oc.FormatError, match=r"is of another training.*--epoch last"):
        oc.embed_eval(run, "valid", progress=False)


@pytest.mark.parametrize("file", ["tables.bin", "checkpoint.safetensors"])
@pytest.mark.parametrize("missing", [False, True])
def test_of_damaged_best_vectors_the_last_are_advised(run, file, missing):
    train(run, every(1), trained={"epochs": 2})
    (kept,) = run.glob("best-*")
    if missing:
        (kept / file).unlink()
    else:
        content = bytearray((kept / file).read_bytes())
        content[next(i for i in range(len(content) // 2, len(content)) if content[i])] ^= 1
        (kept / file).write_bytes(content)
    with pytest.raises((oc.FormatError, oc.ChecksumError), match=rf"{kept.name}/{file}.*--epoch last"):
        oc.embed_eval(run, "valid", progress=False)
    assert oc.embed_eval(run, "valid", epoch="last", progress=False).epoch == 1


def test_a_reader_says_that_vectors_were_replaced(run, monkeypatch):
    """Between reading the list and opening the vectors, training has found better ones."""
    train(run, every(1), trained={"epochs": 2})
    stale = rankings.read(run)
    train(run, every(1), trained={"epochs": 4})
    assert stale.best != rankings.read(run).best
    told = iter([stale, rankings.read(run)])
    monkeypatch.setattr(model_of, "read", lambda _run: next(told))
    monkeypatch.setattr(RankList, "counts_at", lambda *_: True)
    with pytest.raises(oc.IoError, match="another process trains there"):
        oc.embed_eval(run, "valid", progress=False)


def test_damage_is_not_kept(run, monkeypatch):
    """A slice that is damaged on disk before it is copied ends the training, which says so."""
    real = validation.evaluate

    def damaging(model, *args, **options):
        found = real(model, *args, **options)
        (table,) = model.table.files
        place = table.stored_at(3)
        with place.path.open("r+b") as file:
            file.seek(place.offset)
            byte = file.read(1)
            file.seek(place.offset)
            file.write(bytes([byte[0] ^ 1]))
        return found

    monkeypatch.setattr(validation, "evaluate", damaging)
    with pytest.raises(oc.ChecksumError, match="slice 3 has checksum"):
        train(run, every(1))
    assert not (run / FILE).exists()


def test_verify_reads_what_was_kept(run):
    from outcrop.cli.verifying import _verify_embeddings
    from outcrop.runtime.runtime import Runtime

    train(run, every(1), trained={"epochs": 2})
    train(run, trained={"epochs": 3})  # on without ranking: the best does not count now, and is read
    with Runtime() as runtime:
        found = _verify_embeddings(run, runtime)
        assert [Path(name).name for name in found] == ["buckets", "tables", "best-1"]
        file = run / "best-1" / "tables.bin"
        content = bytearray(file.read_bytes())
        at = next(i for i, byte in enumerate(content) if byte)
        content[at] ^= 1
        file.write_bytes(content)
        with pytest.raises(oc.ChecksumError, match="slice"):
            _verify_embeddings(run, runtime)


def test_runs_are_also_what_the_calls_before_returned(tmp_path):
    """As somebody chains the calls who has no paths in mind; the same as with folders."""
    triples = random_triples(60, 3, 600)
    text = tmp_path / "text"
    text.mkdir()
    for split, rows in (("train", triples), ("valid", triples[:50]), ("test", triples[50:90])):
        lines = (f"n{a}\tr{r}\tn{b}\n" for a, r, b in rows.tolist())
        (text / f"{split}.txt").write_text("".join(lines))
    graph = oc.import_triples(text, tmp_path / "kg", progress=False)
    buckets = oc.embed_prepare(graph, tmp_path / "run", oc.BucketConfig(2), progress=False)
    report = oc.embed_train(buckets, CONFIG, observer=oc.Observer(progress=False))
    assert report.path == tmp_path / "run"
    assert json.loads(json.dumps(report.as_dict()))["path"] == str(tmp_path / "run")
    assert oc.embed_eval(report, progress=False) == oc.embed_eval(tmp_path / "run", progress=False)
    assert oc.embed_neighbors(report, "n1") == oc.embed_neighbors(buckets, "n1")
    assert oc.embed_export(buckets, progress=False)[0].parent == tmp_path / "run" / "export"


def test_the_report_shows_what_was_ranked(run):
    from outcrop.report.embedding import collect, page

    train(run, trained={"epochs": 2})
    assert "ranked best" not in page(collect(run))
    train(run, every(1), trained={"epochs": 4})
    shown = page(collect(run))
    best = rankings.read(run).best_ranking
    assert f"The validation edges ranked best after epoch {best.epoch}" in shown
    assert f"{best.mrr:.4f}" in shown

"""Checkpoints: exact resumption, what is kept, and every way in which a file can be wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from outcrop.errors import ArgumentError, ChecksumError, FormatError, OutcropError
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.checkpoint import BEST, LAST, Checkpoint, Meta
from outcrop.nn.models import MODELS, build_model
from outcrop.nn.schema import GraphSchema, NodeSchema
from outcrop.nn.typed import TypedModel
from outcrop.store.tensors import State
from outcrop.training.evaluate import evaluate
from training_support import CLASSES, DIM, Problem, Settings, quick

__all__ = ["quick"]  # a fixture of every test here

CONFIG = Settings(
    hidden=16, epochs=6, dropout=0.4, learning_rate=0.01, weight_decay=1e-3, seed=3, trace_losses=True
)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem()


@pytest.fixture
def folder(tmp_path, problem):
    problem.run(replace(CONFIG, epochs=2), tmp_path / "run", inputs={"graph": "aa"})
    return tmp_path / "run"


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


def learned(result):
    """A result without its times."""
    return (
        [replace(record, seconds=0, load_seconds=0) for record in result.epochs],
        result.best_epoch,
        result.batch_losses,
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("stops", [(3,), (1, 2, 5), (6,)])
def test_resuming_equals_no_interruption_bit_for_bit(problem, tmp_path, name, stops):
    config = replace(CONFIG, model=name)
    whole = problem.run(config, tmp_path / "whole")
    for stop in stops:
        problem.run(replace(config, epochs=stop), tmp_path / "parts")
    parts = problem.run(config, tmp_path / "parts")
    assert learned(parts) == learned(whole)
    assert same(parts.model.state_dict(), whole.model.state_dict())
    for file in (LAST, BEST):
        assert same(load_file(tmp_path / "whole" / file), load_file(tmp_path / "parts" / file))
    tensors = load_file(tmp_path / "whole" / LAST)
    assert any(tensors[key].abs().sum() > 0 for key in tensors if key.endswith("exp_avg_sq"))
    assert {"model", "best", "optimizer"} == {key.split(".")[0] for key in tensors}


@pytest.mark.parametrize("batch", [0, 2])
def test_resuming_after_a_crash_within_an_epoch(problem, tmp_path, batch):
    class Crash(Exception):
        pass

    def crashing(epoch):
        for number, value in enumerate(problem.train_batches(epoch)):
            if (epoch, number) == (3, batch):
                raise Crash
            yield value

    whole = problem.run(CONFIG)
    for every in (1, 2, 10):
        out, config = tmp_path / str(every), replace(CONFIG, checkpoint_every=every)
        with pytest.raises(Crash):
            problem.run(config, out, train_batches=crashing)
        assert (out / LAST).exists() == (every < 10)
        if every < 10:
            assert checkpoints.read(out / LAST).meta.epochs_done == {1: 3, 2: 2}[every]
        resumed = problem.run(config, out)
        assert learned(resumed) == learned(whole)
        assert same(resumed.model.state_dict(), whole.model.state_dict())


def test_crash_between_the_two_files_is_harmless(problem, tmp_path, monkeypatch):
    """``best`` may be of another epoch than ``last`` says: the next run writes it again."""
    whole = problem.run(CONFIG, tmp_path / "whole")
    problem.run(replace(CONFIG, epochs=3), tmp_path / "torn")
    (tmp_path / "torn" / BEST).write_bytes(b"torn")
    resumed = problem.run(CONFIG, tmp_path / "torn")
    assert learned(resumed) == learned(whole)
    assert same(load_file(tmp_path / "torn" / BEST), load_file(tmp_path / "whole" / BEST))


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("every", [1, 3])
def test_best_is_never_left_behind_last(problem, tmp_path, monkeypatch, error, every):
    """The last checkpoint fails, or the process is killed, between its two files: ``best`` is old, or missing."""
    scores = iter([0.1, 0.2, 0.3] * 2)
    config, out, write = (
        replace(CONFIG, epochs=3, checkpoint_every=every),
        tmp_path / "torn",
        checkpoints.write,
    )

    def run(folder):
        return problem.run(config, folder, evaluate=lambda *_: SimpleNamespace(accuracy=next(scores)))

    def torn(path, checkpoint):
        if path.name == BEST and checkpoint.meta.epochs_done == 3:
            raise error
        write(path, checkpoint)

    whole = run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", torn)
        with pytest.raises(error):
            run(out)
    assert (out / BEST).exists() == (every == 1)
    # Whoever does not train again has the best model all the same.
    assert same(checkpoints.load_model(out).state_dict(), whole.model.state_dict())
    assert len(run(out).epochs) == 3
    assert same(load_file(out / BEST), load_file(tmp_path / "whole" / BEST))
    assert checkpoints.read(out / BEST).meta.best_epoch == 2


@pytest.mark.parametrize("old", [False, True])
def test_last_and_best_under_each_others_names_are_refused(problem, folder, old):
    if old:  # the first version said nothing about kinds
        for file in (LAST, BEST):
            rewrite(folder / file, lambda h: (h.pop("kind"), h.update(version=1)))
    (folder / LAST).rename(folder / "third")
    (folder / BEST).rename(folder / LAST)
    (folder / "third").rename(folder / BEST)
    with pytest.raises(FormatError, match=r"last.safetensors is a checkpoint of kind 'best'"):
        problem.run(replace(CONFIG, epochs=3), folder, inputs={"graph": "aa"})
    with pytest.raises(FormatError, match=r"best.safetensors is a checkpoint of kind 'last'"):
        checkpoints.load_model(folder)


def test_finished_training_is_not_repeated(problem, folder):
    before = (folder / LAST).read_bytes()
    result = problem.run(
        replace(CONFIG, epochs=2),
        folder,
        inputs={"graph": "aa"},
        train_batches=lambda _: pytest.fail("trained again"),
    )
    assert len(result.epochs) == 2
    assert (folder / LAST).read_bytes() == before
    with pytest.raises(ArgumentError, match="has 2 epochs behind it, 1 were asked"):
        problem.run(replace(CONFIG, epochs=1), folder, inputs={"graph": "aa"})


def test_starting_over_overwrites(problem, folder):
    result = problem.run(replace(CONFIG, epochs=1, seed=9), folder, resume=False)
    assert checkpoints.read(folder / LAST).meta.epochs_done == len(result.epochs) == 1


def test_the_files_hold_no_pickle_and_nothing_half_written(folder):
    assert sorted(path.name for path in folder.iterdir()) == [BEST, LAST]
    with safe_open(folder / LAST, "pt") as file:
        header = json.loads(file.metadata()["outcrop"])
    assert header["format"] == "outcrop.checkpoint"
    assert header["version"] == 2
    assert header["kind"] == "last"
    assert header["epochs_done"] == 2
    assert len(header["history"]) == 2
    assert header["inputs"] == {"graph": "aa"}
    assert header["config"]["model"] == "sage"
    assert header["config"]["in_dim"] == DIM


def test_the_best_model_is_loaded_for_use(problem, tmp_path):
    result = problem.run(CONFIG, tmp_path)
    model = checkpoints.load_model(tmp_path)
    assert not model.training
    assert same(model.state_dict(), result.model.state_dict())
    found = evaluate(model, problem.valid_batches())
    assert found.accuracy == result.epochs[result.best_epoch].valid_accuracy


def test_another_training_is_refused_with_all_differing_fields(problem, folder):
    with pytest.raises(ArgumentError) as error:
        problem.run(replace(CONFIG, hidden=8, seed=4), folder, inputs={"graph": "bb"})
    for part in (
        "graph digest (there 'aa', now 'bb')",
        "hidden (there 16, now 8)",
        "seed (there 3, now 4)",
        str(folder),
    ):
        assert part in str(error.value)
    assert "dropout" not in str(error.value)


@pytest.mark.parametrize("keep", [0, 4, 9, 200, -1, -1000])
def test_truncated_files_are_refused(problem, folder, keep):
    path = folder / LAST
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FormatError, match=r"last.safetensors .*train again"):
        problem.run(CONFIG, folder, inputs={"graph": "aa"})


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_a_changed_bit_is_noticed(problem, folder, share):
    path = folder / LAST
    content = bytearray(path.read_bytes())
    first = 8 + int.from_bytes(content[:8], "little")  # of the tensors, behind the header
    content[first + int(share * (len(content) - 1 - first))] ^= 1
    path.write_bytes(content)
    with pytest.raises(ChecksumError, match=r"last.safetensors: its tensors differ .*train again"):
        checkpoints.read(path)


def rewrite(path, change):
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["outcrop"])
    del header["header_sha256"]  # as an earlier version, or somebody who computes it anew
    change(header)
    save_file(load_file(path), path, {"outcrop": json.dumps(header)})


def test_every_character_of_the_header_counts(folder):
    """A history or a count of updates that is another is damage, though it could be that of another training."""
    path, whole = folder / LAST, (folder / LAST).read_bytes()
    size, first = int.from_bytes(whole[:8], "little"), whole.index(b"outcrop")
    seal = whole.index(b"header_sha256")
    for at in {*range(first, 8 + size, 29), *range(seal - 4, seal + 20)}:
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(OutcropError, match=r"last\.safetensors"):
            checkpoints.read(path)
    path.write_bytes(whole)
    checkpoints.read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.update(format="other"), "no checkpoint of Outcrop"),
        (lambda h: h.update(version=3), "version 3, this Outcrop reads versions 1 to 2"),
        (lambda h: h.pop("history"), "lacks or garbles a field"),
    ],
)
def test_foreign_headers_are_refused(folder, change, message):
    rewrite(folder / LAST, change)
    with pytest.raises(FormatError, match=message):
        checkpoints.read(folder / LAST)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.update(config=[]),
        lambda h: h.update(inputs="aa"),
        lambda h: h.update(history=[{"epoch": 0}]),
        lambda h: h.update(history=[1, 2]),
        lambda h: h.update(best_epoch="none"),
        lambda h: h.update(best_epoch=7),
        lambda h: h.update(updates=[]),
        lambda h: h.update(partial={"other": 1}),
        lambda h: h["config"].update(layers=10**7),
        lambda h: h["config"].update(hidden="wide"),
        lambda h: h["config"].update(hidden=2**31),
        lambda h: h["config"].update(dropout=[]),
    ],
)
def test_fields_of_another_type_are_refused_in_one_line(problem, folder, change):
    for file in (LAST, BEST):
        rewrite(folder / file, change)

    def load(path):
        checkpoints.load_model(path)
        problem.run(replace(CONFIG, epochs=2), path, inputs={"graph": "aa"})

    with pytest.raises((FormatError, ArgumentError)) as error:
        load(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("metadata", [None, {"outcrop": "[]"}, {"outcrop": "{"}])
def test_foreign_safetensors_files_are_refused(tmp_path, metadata):
    save_file({"weight": torch.ones(2)}, tmp_path / LAST, metadata)
    with pytest.raises(FormatError, match=r"last.safetensors .*train again"):
        checkpoints.read(tmp_path / LAST)


def test_a_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(FormatError, match=r"best.safetensors is missing"):
        checkpoints.load_model(tmp_path)


def test_another_architecture_is_refused(tmp_path):
    meta = Meta(
        1,
        0,
        {
            "model": "sage",
            "in_dim": DIM,
            "hidden": 16,
            "num_classes": CLASSES,
            "layers": 3,
            "heads": 4,
            "dropout": 0.0,
        },
    )
    state = build_model("sage", DIM, 16, CLASSES, 2).state_dict()
    checkpoints.write(tmp_path / BEST, Checkpoint(meta, state))
    with pytest.raises(FormatError, match=r"another model: convs.1.lin_l.bias, .*convs.2.lin_l.bias"):
        checkpoints.load_model(tmp_path)


SCHEMA = GraphSchema(
    (NodeSchema("paper", DIM, "float16"), NodeSchema("author", 4, made="random:4")),
    (("author", "writes", "paper"), ("paper", "rev_writes", "author")),
    "paper",
    CLASSES,
    row_seed=5,
)


def of_types(**changes) -> tuple[Meta, State]:
    """What a loop of one's own would keep of a model of a graph with types."""
    config = {
        "model": "rsage",
        "schema": SCHEMA.as_stored(),
        "hidden": 16,
        "num_classes": CLASSES,
        "layers": 2,
        "heads": 4,
        "dropout": 0.0,
    }
    torch.manual_seed(0)
    return Meta(1, 0, {**config, **changes}), build_model("rsage", SCHEMA, 16, CLASSES, 2).state_dict()


def test_a_model_of_a_graph_with_types_comes_back_with_what_it_needs(tmp_path):
    meta, state = of_types()
    checkpoints.write(tmp_path / BEST, Checkpoint(meta, state))
    model = checkpoints.load_model(tmp_path)
    assert isinstance(model, TypedModel)
    assert model.schema == SCHEMA
    assert same(model.state_dict(), state)
    edges = {key: torch.tensor([[0, 1], [1, 1]]) for key in SCHEMA.edge_types}
    fresh = build_model("rsage", SCHEMA, 16, CLASSES, 2)
    fresh.load_state_dict(state)
    x = {"paper": torch.ones(2, DIM).half(), "author": torch.ones(2, 4)}
    assert torch.equal(model(x, edges), fresh(x, edges))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"schema": {}}, "lacks or garbles a field"),
        ({"schema": {**SCHEMA.as_stored(), "num_classes": "many"}}, "lacks or garbles a field"),
        (
            {"schema": {**SCHEMA.as_stored(), "seed_type": "topic"}},
            "lacks or garbles a field.*'topic' of the seeds",
        ),
        (
            {"schema": {**SCHEMA.as_stored(), "edge_types": []}, "model": "rgcn"},
            r"another model: convs.0.convs.<author___writes___paper>",
        ),
    ],
)
def test_other_schemas_are_refused(tmp_path, change, match):
    checkpoints.write(tmp_path / BEST, Checkpoint(*of_types(**change)))
    with pytest.raises(FormatError, match=match):
        checkpoints.load_model(tmp_path)


def test_tensors_of_every_kind_survive(tmp_path):
    """Shared, strided, scalar, empty and narrow tensors come back as values."""
    base = torch.arange(12, dtype=torch.float32).view(3, 4)
    state = {
        "a": base,
        "b": base.t(),
        "c": base[1],
        "d": torch.tensor(3.5),
        "e": torch.empty(0, 2),
        "f": base.bfloat16(),
        "g": torch.tensor([True, False]),
    }
    checkpoints.write(tmp_path / "deep" / LAST, Checkpoint(Meta(0, 0, {}), state))
    assert same(checkpoints.read(tmp_path / "deep" / LAST).model, state)

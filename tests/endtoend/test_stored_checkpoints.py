"""Checkpoints at a URI: every machine goes on from them, and a training that is killed loses none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from outcrop.errors import ArgumentError, FormatError, IoError
from outcrop.nn import checkpoint as checkpoints
from outcrop.store import mirror, remote
from outcrop.store.remote import RemoteFolder
from outcrop.store.tensors import digest
from store_support import Store

QUIET = oc.Observer(progress=False)
EPOCHS = 4
pytestmark = pytest.mark.leaks("thread", "fd", reason="the library of S3 keeps a thread and connections")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("here"), np.random.default_rng(0)
    parts = {
        "edges": rng.integers(0, 900, (8000, 2)),
        "features": rng.normal(size=(900, 12)).astype(np.float32),
        "labels": rng.integers(0, 3, 900),
    }
    splits = {"train": np.arange(420), "valid": np.arange(420, 530)}
    return oc.import_graph(parts, folder / "g.oc", splits=splits, progress=False).path


@pytest.fixture(scope="module")
def want(graph: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a training learns whose checkpoints are in a folder."""
    return learned(train(graph, str(tmp_path_factory.mktemp("want")), EPOCHS))


@pytest.fixture
def on_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Gives the process the cache folder of a machine."""
    return lambda name: monkeypatch.setenv("OUTCROP_CACHE", str(tmp_path / f"cache-{name}"))


def train(graph: Path, uri: str, epochs: int, **options: Any) -> Any:
    return oc.train(
        graph,
        model=oc.ModelConfig("sage", hidden=16, dropout=0.3),
        sampling=oc.SampleConfig(fanouts=(4, 3), batch_size=100),
        loading="online",
        training=oc.TrainConfig(epochs=epochs, trace_losses=True),
        checkpoint=oc.Checkpoints(uri, **options),
        observer=QUIET,
    )


def learned(report: Any) -> dict[str, Any]:
    scores = [(epoch["loss"], epoch["valid_accuracy"]) for epoch in report.epochs]
    return {"weights": digest(report.model.state_dict()), "losses": report.batch_losses, "scores": scores}


def test_another_machine_goes_on(graph: Path, want: dict[str, Any], store: Store, on_machine: Any) -> None:
    uri = store("runs/ckpt")
    on_machine("one")
    first = train(graph, uri, 2)
    assert first.resumed_from is None
    assert first.model_file == remote.without_keys(uri)
    assert "secret" not in repr(first.as_dict())
    on_machine("two")
    plan = oc.api.train.dry_run(graph, {**options_of(uri), "epochs": EPOCHS})
    assert (plan["next_epoch"], plan["checkpoint"]) == (2, remote.without_keys(uri))
    second = train(graph, uri, EPOCHS)
    assert second.resumed_from == 2
    assert learned(second) == want
    on_machine("one")  # whose folder is of before
    assert train(graph, uri, EPOCHS).trained_epochs == 0
    assert digest(oc.load_model(uri).state_dict()) == want["weights"]
    files = RemoteFolder(uri).sizes()
    assert [name.partition("-")[0] for name in files] == ["best", "index.json", "last"]


def options_of(uri: str) -> dict[str, Any]:
    return {
        "model": oc.ModelConfig("sage", hidden=16, dropout=0.3),
        "sampling": oc.SampleConfig(fanouts=(4, 3), batch_size=100),
        "loading": "online",
        "training": oc.TrainConfig(trace_losses=True),
        "checkpoint": uri,
    }


@pytest.mark.quick_cases(1)
def test_what_reads_a_model_takes_the_uri(graph: Path, store: Store, on_machine: Any, tmp_path: Path) -> None:
    uri = store("ckpt")
    on_machine("one")
    model = train(graph, uri, 2).model
    on_machine("two")
    want = oc.predict(graph, model, [5, 3, 8], observer=QUIET)
    assert np.array_equal(oc.predict(graph, uri, [5, 3, 8], observer=QUIET), want)
    out = tmp_path / "out.npy"
    command = [
        sys.executable,
        "-m",
        "outcrop",
        "infer",
        str(graph),
        "--checkpoint",
        uri,
        "--out",
        str(out),
        "--quiet",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # Of the same model, in blocks of the same rows: dense products of batches may be rounded in another way.
    oc.infer(graph, model=model, out=tmp_path / "same.npy", observer=QUIET)
    assert np.array_equal(np.load(out), np.load(tmp_path / "same.npy"))
    np.testing.assert_allclose(np.load(out)[[5, 3, 8]], want, rtol=1e-5, atol=1e-6)
    with pytest.raises(FormatError, match=r"nothing.* holds none of best.safetensors, last.safetensors"):
        oc.load_model(store("nothing"))
    with pytest.raises(ArgumentError, match="is a URI in a Path"):
        train(graph, Path(uri), 2)


KILLED = """
import os, signal, sys
import outcrop as oc
from outcrop.store.remote import RemoteFolder

left = int(sys.argv[3])
write = RemoteFolder.write

def killing(self, name, content):
    global left
    if name == "index.json" and (left := left - 1) < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, name, content)

RemoteFolder.write = killing
oc.train(
    sys.argv[1],
    model=oc.ModelConfig("sage", hidden=16, dropout=0.3),
    sampling=oc.SampleConfig(fanouts=(4, 3), batch_size=100),
    loading="online",
    training=oc.TrainConfig(epochs=4, trace_losses=True),
    checkpoint=oc.Checkpoints(sys.argv[2], minutes=float(sys.argv[4])),
    observer=oc.Observer(progress=False),
)
"""


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(("after", "minutes"), [(0, 9.0), (2, 9.0), (7, 0.0)])
@pytest.mark.parametrize("where", ["same", "other"])
def test_killed_between_tensors_and_index(
    graph: Path,
    want: dict[str, Any],
    store: Store,
    on_machine: Any,
    after: int,
    minutes: float,
    where: str,
) -> None:
    """On the same machine training goes on from what was not copied, elsewhere from what was; both end alike."""
    uri = store("ckpt")
    on_machine("same")
    command = [sys.executable, "-c", KILLED, str(graph), uri, str(after), str(minutes)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sum(name.startswith("last-") for name in RemoteFolder(uri).sizes()) == (2 if after else 1)
    on_machine(where)
    found = train(graph, uri, EPOCHS)
    epochs = {0: (1, None), 2: (3, 2), 7: (1, 1)}[after]
    assert found.resumed_from == epochs[where == "other"]
    assert learned(found) == want
    assert len(RemoteFolder(uri).sizes()) == 3


def test_a_store_that_fails_ends_training_which_goes_on_when_it_is_back(
    graph: Path, want: dict[str, Any], tmp_path: Path, on_machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/store/ckpt"
    on_machine("one")
    monkeypatch.setattr(remote, "_FIRST_WAIT_S", 0.001)
    train(graph, uri, 1)
    (tmp_path / "store" / "ckpt").chmod(0o500)
    if os.access(tmp_path / "store" / "ckpt", os.W_OK):  # root
        monkeypatch.setattr(RemoteFolder, "send", refuse)
    with pytest.raises(IoError, match=rf"{uri}/last-"):
        train(graph, uri, EPOCHS)
    monkeypatch.undo()
    (tmp_path / "store" / "ckpt").chmod(0o700)
    on_machine("one")
    found = train(graph, uri, EPOCHS)
    assert found.resumed_from == 2
    assert learned(found) == want


def refuse(self: RemoteFolder, name: str, path: Path) -> None:
    raise IoError(13, f"{self.uri}/{name}: permission denied")


def test_errors_name_the_uri_and_starting_over_replaces(graph: Path, store: Store, on_machine: Any) -> None:
    uri = store("ckpt")
    on_machine("one")
    train(graph, uri, 3)
    on_machine("two")
    with pytest.raises(ArgumentError) as caught:
        train(graph, uri, 2)
    assert str(caught.value).startswith(f"{remote.without_keys(uri)}/last.safetensors has 3 epochs behind it")
    assert train(graph, uri, 2, resume=False).resumed_from is None
    on_machine("three")
    assert train(graph, uri, 2).resumed_from == 2


def test_two_trainings_cannot_write_one_place(graph: Path, tmp_path: Path, on_machine: Any) -> None:
    uri = f"file://{tmp_path}/store/ckpt"
    on_machine("one")

    class Other(oc.Callback):
        def on_epoch(self, epoch: int, values: Any) -> None:
            (tmp_path / "store" / "ckpt" / "index.json").write_text(
                json.dumps({"format": "outcrop.mirror", "version": 1, "files": {}})
            )

    train(graph, uri, 1)
    options = options_of(uri) | {"training": oc.TrainConfig(epochs=3, trace_losses=True)}
    with pytest.raises(ArgumentError, match=r"ckpt was written by another process since"):
        oc.train(graph, **options, callbacks=[Other()], observer=QUIET)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["file"], indirect=True)
def test_ranks_go_on_from_a_uri(graph: Path, store: Store, tmp_path: Path) -> None:
    """Two processes, each with a cache folder of its own, as on two machines, learn what one does with a folder."""
    uri = store("ckpt")
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, sys\n"
        "from outcrop.runtime.group import RankGroup\n"
        f"os.environ['OUTCROP_CACHE'] = {str(tmp_path)!r} + '/' + os.environ['MACHINE'] + os.environ['RANK']\n"
        "os.environ['GROUP_RANK'] = os.environ['RANK']  # tells machines apart\n"
        "from outcrop.cli.start import run\n"
        "run()\n"
    )

    def ended(start: list[str], checkpoint: str, epochs: int, machine: str = "") -> dict[str, Any]:
        report = tmp_path / "report.json"
        command = [
            *start,
            "train",
            str(graph),
            "--checkpoint",
            checkpoint,
            "--epochs",
            str(epochs),
            "--quiet",
        ]
        more = [
            "--mode",
            "online",
            "--batch-size",
            "40",
            "--accumulate",
            "2",
            "--trace-losses",
            "--json",
            str(report),
        ]
        done = subprocess.run(
            [*command, *more],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment | {"MACHINE": machine},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(report.read_text())

    both = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    want = ended([sys.executable, "-m", "outcrop"], str(tmp_path / "want"), 3)
    assert ended(both, uri, 2, "a")["epochs"][-1]["loss"] == want["epochs"][1]["loss"]
    found = ended(both, uri, 3, "b")
    assert found["resumed_from"] == 2
    assert found["batch_losses"] == want["batch_losses"]
    with mirror.fetched(uri, checkpoints.LAST) as folder:
        weights = [
            digest(checkpoints.read(at / checkpoints.LAST).model) for at in (folder, tmp_path / "want")
        ]
    assert weights[0] == weights[1]
    caches = [len(list((tmp_path / name).rglob(checkpoints.LAST))) for name in ("a0", "a1", "b0", "b1")]
    assert caches == [1, 0, 1, 1]  # rank 1 of the first training found nothing to fetch

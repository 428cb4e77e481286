"""The loader that people hold: an object that is iterated once an epoch, as torch's DataLoader is."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from outcrop.errors import ArgumentError, OutcropWarning
from outcrop.loading.input_ids import InputIds
from outcrop.loading.ranks import Ranks
from outcrop.loading.sessions import Open, OpenSession, Sessions
from outcrop.runtime.runtime import Runtime
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph

if TYPE_CHECKING:
    from outcrop.nn.convs import Data


_STATE_VERSION = 1


@dataclass(frozen=True)
class Source:
    """Says what a loader goes over.

    Attributes:
        name: What people call it: a split, or where the batches are from.
        graph: What the batches are of.
        split: As sessions know it.
        count: Batches of an epoch; None: not known before it is over.
        all_batches: Those counted are all; else sessions know more, which are left out.
        distinct: Epochs that differ; training beyond them meets them again. Empty: every epoch has its own batches, or
            there is one only.
        key: Equal for loaders that can share a session.
        open: Opens one.
        input_ids: Ids that seeds are positions in, opened within a runtime; None: batches have no ``input_id``.
        complete: Makes, within a runtime, what adds edge weights and ids to batches; None: nothing does.
        identity: What must be the same for a state to be loaded, beside ranks.
        home: Where the batches lie, for messages.
        refusing: Around opening and reading: refusals of the memory budget name one that works, where that is known.
        num_seeds: Nodes, or edges to be predicted, that an epoch goes over; None: not known.
        reseeded: Describes the same with another seed; None: batches were drawn.
    """

    name: str
    graph: Graph
    split: str
    count: int | None
    distinct: range
    key: Hashable
    open: Open
    input_ids: Callable[[Runtime], InputIds] | None
    complete: Callable[[Runtime], Callable[[BatchGraph], BatchGraph]] | None
    identity: Mapping[str, Any]
    home: str
    all_batches: bool = True
    refusing: Callable[[], AbstractContextManager[None]] = nullcontext
    num_seeds: int | None = None
    reseeded: Callable[[int], Source] | None = None


@dataclass
class _Place:
    """Says where a pass is: ``position`` batches of ``epoch`` were handed out; ``over``: and there are no more.

    ``begun``: somebody asked for a batch. Some frameworks make iterators that they do not use.
    """

    epoch: int = 0
    position: int = 0
    over: bool = False
    begun: bool = False


class RunLoader:
    """Loads mini-batches from disk, as ``torch_geometric.data.Data``; iterate over it once an epoch.

    Of a graph whose nodes or edges have types they are ``HeteroData`` (:func:`outcrop.loading.hetero.to_hetero`).

    Each iteration is the next epoch: 0, 1, 2, ..., unless ``epoch`` or :meth:`set_epoch` says which. What loading
    needs (threads, buffers, caches) is opened by the first iteration and kept until :meth:`close`, or until nothing
    refers to the loader; it also works as a context manager. Loaders of one run share it, so that passes one after
    another (train, then valid) keep within the run's memory; passes at the same time take that memory each.

    Batches have ``x`` [n, D], ``edge_index`` int64 [2, E], ``y`` (of the seeds), ``n_id``, ``batch_size``,
    ``num_sampled_nodes``, ``num_sampled_edges`` in NeighborLoader's conventions; ``number``, which batch of the epoch
    it is; ``input_id`` int64 [batch_size], positions of the seeds in the split or in the ids given (not for links, nor
    for batches from elsewhere); ``edge_weight`` float32 [E] where the graph has weights; ``edge_attr`` [E, D] where
    features of edges were asked for (:class:`outcrop.SampleConfig`, ``edge_rows``); ``e_id`` int64 [E] with these, and
    where it was asked for: positions in ``graph.edge_index()``, which are the rows of the features. ``x`` and
    ``edge_attr`` lie in one of a few buffers: do not keep more than one batch without cloning it. On a GPU so does all
    that has one entry per node, and ``col``; what has one per seed may be kept. There a batch is used on the stream
    that is current when it is asked for; for another stream say ``batch.record_stream(stream)``, as for any tensor.
    """

    def __init__(
        self,
        source: Source,
        sessions: Sessions,
        ranks: Ranks,
        epoch: int | None = None,
        transform: Callable[[Data], Data] | None = None,
        any_seed: bool = False,
    ):
        if source.count is None and not ranks.alone:
            raise ArgumentError(
                f"{source.home}: batches that are not counted ahead cannot be divided among ranks"
            )
        self._source, self._sessions, self._ranks = source, sessions, ranks
        self._transform, self._any_seed = transform, any_seed
        self._fixed: int | None = None
        self._next = 0
        self._place = _Place()
        self._resumed: tuple[int, int] | None = None
        self._pass: weakref.ref[_Pass] | None = None
        self._stepped: _Pass | None = None  # by next(loader)
        self._warned = False
        if epoch is not None:
            self.set_epoch(epoch)

    def __len__(self) -> int:
        """Counts the batches of an epoch that this process gets.

        Raises:
            TypeError: Not known before the epoch is over (mode partition).
        """
        if self._source.count is None:
            raise TypeError(f"{self._source.home}: how many batches an epoch has shows when it is over")
        return len(self._ranks.batches(self._source.count))

    def __repr__(self) -> str:
        length = "?" if self._source.count is None else len(self)
        ranks = "" if self._ranks.alone else f", rank={self._ranks.rank}, world={self._ranks.world}"
        return f"RunLoader({self._source.home!r}, split={self._source.name!r}, batches={length}{ranks})"

    @property
    def dataset(self) -> range:
        """Returns the positions of the seeds of all processes: ``len(loader.dataset)`` counts them, as with torch.

        Raises:
            AttributeError: Their number is not known: of a run of links, or of batches from elsewhere.
        """
        if self._source.num_seeds is None:
            raise AttributeError(f"{self._source.home}: how many seeds its batches have is not known")
        return range(self._source.num_seeds)

    def __getitem__(self, index: object) -> NoReturn:
        """Refuses an index, or a DataLoader around this loader would ask for batches one by one."""
        raise ArgumentError(_NO_DATALOADER)

    def set_epoch(self, epoch: int | None) -> None:
        """Fixes the epoch of the iterations to come, as torch's DistributedSampler does; None: each is the next one."""
        if epoch is not None and epoch < 0:
            raise ArgumentError(f"epoch {epoch} is negative")
        self._fixed = epoch

    def __iter__(self) -> Iterator[Data]:
        """Begins a pass, which opens what it needs when the first batch is asked for, and counts as an epoch then.

        A pass of this loader that is still under way ends, and says so when it is asked for another batch: passes at
        the same time take two loaders.

        Raises:
            ArgumentError: In a worker process of a DataLoader.
        """
        if (stepped := self._stepped) is not None:
            self._stepped = None
            return stepped
        return self._begin()

    def __next__(self) -> Data:
        """Returns the next batch of the pass that the first ``next`` began."""
        if self._stepped is None:
            self._stepped = self._begin()
        try:
            return next(self._stepped)
        except BaseException:
            self._stepped = None
            raise

    def _begin(self) -> _Pass:
        _refuse_worker()
        self._end_pass(_ITERATED)
        if self._place.begun:
            self._next, self._resumed = self._place.epoch + 1, None
        epoch, position = self._where_to_begin()
        self._warn_of_replay(epoch)
        count = self._source.count
        numbers = None if count is None else self._ranks.batches(count)
        begun = _Pass(self._source, self._sessions, epoch, numbers, position, self._transform)
        self._place = begun.place
        self._pass = weakref.ref(begun)
        return begun

    def _where_to_begin(self) -> tuple[int, int]:
        epoch = self._next if self._fixed is None else self._fixed
        if self._resumed is None:
            return epoch, 0
        at, position = self._resumed
        if self._fixed is None and position == self._length_or(position + 1):
            return at + 1, 0  # that epoch was over
        if self._fixed is None or self._fixed == at:
            return at, position
        return epoch, 0

    def _length_or(self, otherwise: int) -> int:
        return otherwise if self._source.count is None else len(self)

    def _warn_of_replay(self, epoch: int) -> None:
        distinct = self._source.distinct
        if self._warned or not distinct or epoch in distinct:
            return
        self._warned = True
        again = distinct[(epoch - distinct.start) % len(distinct)]
        warnings.warn(
            f"epoch {epoch} has the batches of epoch {again} again: {self._source.home} holds {len(distinct)} "
            f"different epoch{'s'[: len(distinct) != 1]}. Prepare it with epochs=N for N of them",
            OutcropWarning,
            stacklevel=4,
        )

    def _end_pass(self, why: str = "") -> None:
        """Ends a pass that is under way; given a reason, it says so where it is asked for a batch that it had left."""
        self._stepped = None
        under_way = self._pass() if self._pass is not None else None
        if under_way is not None:
            under_way.end(why)
        self._pass = None

    def state_dict(self) -> dict[str, Any]:
        """Returns where the loader is, as plain values that JSON and ``torch.save`` can keep.

        Within an epoch it counts the batches that were handed out. All ranks are at the same place, so one state does
        for all of them.
        """
        place = self._place
        if not place.begun:
            epoch, position = (self._next, 0) if self._resumed is None else self._resumed
        elif place.over:
            epoch, position = place.epoch + 1, 0
        else:
            epoch, position = place.epoch, place.position
        return {
            "version": _STATE_VERSION,
            "epoch": epoch,
            "position": position,
            **self._identity(self._source),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Has the next iteration go on where ``state`` was taken: it gives the batches that were left of that epoch.

        Where :meth:`set_epoch` names another epoch by then, that one is begun instead. A pass that is under way ends. A
        loader that was given no seed takes that of the state.

        Raises:
            ArgumentError: The state is of other batches, or of other ranks; names the field.
        """
        source = self._source_of(state)
        own = {"version": _STATE_VERSION, **self._identity(source)}
        for name, value in own.items():
            if (was := state.get(name, value)) != value:
                raise ArgumentError(
                    f"this state is of a loader with {_differing(name, was, value)}: open the loader as the one that "
                    "it was taken from"
                )
        try:
            epoch, position = int(state["epoch"]), int(state["position"])
        except (KeyError, TypeError, ValueError):
            raise ArgumentError("this is no state of a loader: it lacks epoch or position") from None
        if epoch < 0 or not 0 <= position <= self._length_or(position):
            raise ArgumentError(f"position {position} of epoch {epoch} is outside the epochs of {self!r}")
        if position and self._source.count is None:
            raise ArgumentError(f"{self._source.home}: only whole epochs can be gone on with in this mode")
        self._end_pass(_SET)
        self._source = source
        self._place, self._next, self._resumed = _Place(), epoch, (epoch, position)

    def _source_of(self, state: Mapping[str, Any]) -> Source:
        """Returns what a loader in this state goes over: with the seed of the state, where this one was given none."""
        sampling = state.get("sampling")
        seed = sampling.get("seed") if isinstance(sampling, Mapping) else None
        reseeded = self._source.reseeded if self._any_seed else None
        if reseeded is None or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
            return self._source
        return self._source if seed == self._source.identity["sampling"]["seed"] else reseeded(seed)

    def _identity(self, source: Source) -> dict[str, Any]:
        ranks = self._ranks
        return {
            "split": source.name,
            "batches": source.count,
            "world": ranks.world,
            "accumulate": ranks.accumulate,
            "uneven": ranks.uneven,
            **source.identity,
        }

    def close(self) -> None:
        """Ends a pass that is under way, as a generator's close does, and frees what was kept. Iterating again opens it
        again.
        """
        self._end_pass()
        self._sessions.close()

    def __enter__(self) -> RunLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Pass:
    """Goes over one epoch, or what is left of it. It does not refer to its loader, so that dropping both ends the
    threads.

    Args:
        numbers: Numbers of the whole epoch's batches, in order; None: not known ahead.
        start: How many of them were handed out before.
    """

    def __init__(
        self,
        source: Source,
        sessions: Sessions,
        epoch: int,
        numbers: Sequence[int] | None,
        start: int,
        transform: Callable[[Data], Data] | None,
    ):
        self.place = _Place(epoch, start)
        self._source, self._sessions, self._numbers = source, sessions, numbers
        self._transform = transform
        self._input_ids: InputIds | None = None
        self._batches: Any = iter(())  # a Loader, once it has begun
        self._finish: weakref.finalize | None = None  # closes the pass, once it has begun
        self._closed, self._ended = False, ""

    def _begin(self) -> None:
        from outcrop.loading.pyg import pyg_arrays

        source, place, numbers = self._source, self.place, self._numbers
        place.begun = True
        whole = numbers is None or (source.all_batches and isinstance(numbers, range) and not place.position)
        left = None if whole or numbers is None else numbers[place.position :]
        with source.refusing():
            used = self._sessions.take(source.key, source.open)
        try:
            self._input_ids = None if source.input_ids is None else source.input_ids(used.runtime)
            complete = None if source.complete is None else source.complete(used.runtime)
            # Those of graphs with types are made of the structure when a batch is taken.
            arrays = None if source.graph.is_typed else partial(pyg_arrays, input_ids=self._input_ids)
            batches = used.session.batches(
                source.split, place.epoch, numbers=left, complete=complete, arrays=arrays
            )
        except BaseException:
            self._sessions.give_back(used)
            raise
        self._batches = batches
        self._finish = weakref.finalize(self, _finish, batches, self._sessions, used)

    def __iter__(self) -> Iterator[Data]:
        return self

    def __next__(self) -> Data:
        from outcrop.loading.pyg import to_pyg

        if self._finish is None and not self._closed and not self._at_end():
            self._begin()
        if self._finish is None or not self._finish.alive:
            if self._ended:
                raise ArgumentError(
                    f"batch {self.place.position} of this pass over {self._source.home} is not to be had any more: the "
                    f"loader {self._ended}"
                )
            self.place.over = self._at_end()
            raise StopIteration
        try:
            with self._source.refusing():
                batch = next(self._batches)
        except BaseException as error:
            self.close()
            self.place.over = isinstance(error, StopIteration)
            raise
        place = self.place
        number = place.position if self._numbers is None else self._numbers[place.position]
        ids = self._input_ids
        input_id = None if ids is None or "input_id" in batch.arrays else ids.of(batch.graph)
        data: Any = to_pyg(batch, self._source.graph, number=number, input_id=input_id)
        place.position += 1
        if self._at_end():
            self._check()
            self.close()  # others can use the session at once: many callers never ask for the end
        return data if self._transform is None else self._transform(data)

    def _check(self) -> None:
        try:
            self._batches.check()
        except BaseException:
            self.close()
            raise

    def _at_end(self) -> bool:
        """Tells whether a pass whose batches are counted has handed out all."""
        return self._numbers is not None and self.place.position == len(self._numbers)

    def close(self) -> None:
        self._closed = True
        if self._finish is not None:
            self._finish()

    def end(self, why: str) -> None:
        """Closes the pass; where it has batches left, it says from then on what the loader did: ``why``."""
        over = self.place.over or self._at_end()
        self.close()
        self._ended = "" if over else why


def _differing(name: str, there: Any, here: Any) -> str:
    """Says how a field of a state differs; of several in one, those that do."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        names = [one for one in {**there, **here} if there.get(one) != here.get(one)]
        return ", ".join(f"{one} {there.get(one)!r}, here {here.get(one)!r}" for one in names)
    return f"{name} {there!r}, here it is {here!r}"


def _finish(batches: Any, sessions: Sessions, used: OpenSession) -> None:
    batches.close()
    sessions.give_back(used)


_ITERATED = "was iterated anew, which ended it. For two passes at the same time make two loaders"
_SET = "was given a state within it, which ended it. Load a state before the loader is iterated"
_NO_DATALOADER = (
    "this loader gives whole mini-batches and reads ahead in threads of its own: iterate over it as it is, or pass it "
    "to Lightning, instead of wrapping it in a torch DataLoader"
)


def _refuse_worker() -> None:
    from torch.utils.data import get_worker_info

    if get_worker_info() is not None:
        raise ArgumentError(
            f"every worker process of a DataLoader would give every batch: {_NO_DATALOADER}, or set num_workers=0"
        )

"""The composable chain: every method returns a new stage, every stage is a torch ``IterableDataset``.

    ShardDataset(...) -> .shuffle() -> .pack() or .documents() -> .map() -> .batch() -> .map() -> .to() -> .prefetch()

A stage holds one frozen ``Plan`` and one place, the global sequence at which every ``iter()`` begins. Iterating makes
the plan's random-access core and asks it for the numbers that belong to this rank and worker; so a place is all that a
state needs. A source plugs in by offering ``Data`` (counts, fingerprint, ``open``), a kind of sequence by offering
a core (``length``, ``first``, ``epoch``) and a collator for it.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from ..errors import ConfigError, StateError
from .batches import row_of, stack
from .data import MemoryData, ShardFiles, Source
from .device import place_on_device, read_ahead, to_torch
from .plan import DocumentLayout, PackLayout, Plan

STATE_VERSION = 1
Item = dict[str, Any]


class Stream(IterableDataset):
    """A stage: iterate it, or call a method for the next stage.

    Iterating yields dicts of torch tensors: documents or sequences of this rank (1-D), or batches after ``batch``.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Shared memory, so that the workers of a loader, persistent ones too, see a place that is set later on:
        # the global sequence, and whether some worker began to iterate.
        self._place = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._worker_batches = 0  # that this worker had handed out when its state was saved
        self._user_state: dict[str, Any] = {}
        self._cursor: _Cursor | None = None
        self._iterator: weakref.ref[Iterator[Item]] | None = None

    # Stages

    def shuffle(self, seed: int = 0, *, window: int | None = None, lanes: int | None = None) -> Stream:
        """Shuffle shards and, inside windows of ``window`` shards, documents; read at ``lanes`` places of the epoch.

        The defaults follow from the manifest: windows of 120,000 documents (4 to 64 shards), 48 lanes or more.
        """
        self._before_layout("shuffle")
        _check_integer("seed", seed, least=0)
        for name, value in (("window", window), ("lanes", lanes)):
            if value is not None:
                _check_integer(name, value, least=1)
        return self._with(seed=seed, window=window, lanes=lanes)

    def pack(
        self, seq_len: int, *, stride: int | None = None, shift: int = 1, boundaries: bool = False, labels: str = "next"
    ) -> Stream:
        """Cut the token stream into sequences of ``seq_len`` tokens, ``stride`` (default: ``seq_len``) tokens apart.

        ``labels`` are the tokens ``shift`` ahead, or with ``labels="same"`` the inputs themselves, for models that
        shift by themselves. ``boundaries=True`` adds ``position_ids``, ``cu_seqlens`` and ``max_seqlen`` and masks
        labels that lie in another document.
        """
        self._before_layout("pack")
        _check_integer("seq_len", seq_len, least=1)
        _check_integer("shift", shift, least=1)
        stride = seq_len if stride is None else stride
        _check_integer("stride", stride, least=1)
        if stride > seq_len:
            raise ConfigError(
                f"stride {stride} > seq_len {seq_len} would skip tokens; use a stride of at most {seq_len}"
            )
        same = _check_labels(labels)
        layout = PackLayout(seq_len=seq_len, stride=stride, shift=shift, boundaries=boundaries, same_labels=same)
        return self._with(layout=layout)

    def documents(self, max_length: int | None = None, *, pad_to_multiple_of: int = 1, labels: str = "next") -> Stream:
        """Yield whole documents, cut at ``max_length`` tokens; batches are padded, with an ``attention_mask``."""
        self._before_layout("documents")
        if max_length is not None:
            _check_integer("max_length", max_length, least=1)
        _check_integer("pad_to_multiple_of", pad_to_multiple_of, least=1)
        same = _check_labels(labels)
        layout = DocumentLayout(max_length=max_length, pad_to_multiple_of=pad_to_multiple_of, same_labels=same)
        return self._with(layout=layout)

    def batch(self, batch_size: int, *, last: str = "pad") -> Stream:
        """Collate ``batch_size`` sequences per rank; every rank gets equally many batches.

        At the end of a bounded stream, ``last="pad"`` fills missing rows with end-of-text ids and labels of -100
        (``valid_tokens`` tells how many labels count), ``last="drop"`` drops what does not fill a batch on every rank.
        """
        if self._plan.batch_size is not None:
            raise ConfigError("a stream is batched once; remove the second .batch()")
        _check_integer("batch_size", batch_size, least=1)
        if last not in ("pad", "drop"):
            raise ConfigError(f"last must be 'pad' or 'drop', got {last!r}")
        return self._with(batch_size=batch_size, drop_last=last == "drop")

    def map(self, function: Callable[[Item], Any]) -> Stream:
        """Apply ``function`` to every sample, or to every batch after ``batch``."""
        return self.apply(_Map(function))

    def apply(self, stage: Callable[[Iterator[Any]], Iterator[Any]]) -> Stream:
        """Run a stage of your own: a generator function over the items before it.

        One that must remember is an object whose ``remembers`` names the attributes to keep in the state; then the
        state belongs to its rank, and another world size refuses it.

        >>> def every_other(items):
        ...     for number, item in enumerate(items):
        ...         if number % 2 == 0:
        ...             yield item
        """
        if not callable(stage):
            raise ConfigError(f"a stage must be callable with an iterator, got {type(stage).__name__}")
        if self._plan.batch_size is None:
            return self._with(steps=(*self._plan.steps, stage))
        return self._with(batch_steps=(*self._plan.batch_steps, stage))

    def take(self, count: int) -> Stream:
        """End after the first ``count`` global sequences, or after ``batch``: after ``count`` batches per rank."""
        _check_integer("count", count, least=0)
        plan = self._plan
        if plan.batch_size is not None:
            count *= plan.batch_size * plan.topology()[1]
        return self._with(take=count if plan.take is None else min(count, plan.take))

    def shard(self, rank: Any, world_size: int | None = None) -> Stream:
        """State which part is ours: a rank and a world size, a device mesh, or a process group.

        Without it, torch.distributed says so where it is initialised, else the stream is one rank's. Ranks that must
        see the same batches, as under tensor parallelism, state the same rank.
        """
        if world_size is None:
            rank, world_size = _group_topology(rank)
        _check_integer("world_size", world_size, least=1)
        _check_integer("rank", rank, least=0)
        if rank >= world_size:
            raise ConfigError(f"rank must be below world_size, got rank {rank} of {world_size}")
        return self._with(rank=rank, world_size=world_size)

    def to(self, device: str | torch.device) -> Stream:
        """Give tensors on ``device``; on a GPU, copied ahead of time from pinned memory."""
        return self._with(device=str(torch.device(device)), numpy=False)

    def numpy(self) -> Stream:
        """Give NumPy arrays for torch tensors."""
        return self._with(numpy=True, device=None)

    def prefetch(self, count: int = 2) -> Stream:
        """Make up to ``count`` items ahead in a thread."""
        _check_integer("count", count, least=0)
        return self._with(prefetch=count)

    # Place

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the place after the items handed out by the latest iterator, as plain JSON.

        With ``batches``, the place after that many of this rank's batches (or samples) from where ``iter()`` began:
        for a plain DataLoader, whose workers hide their places; without it, that raises ``StateError``.
        """
        plan = self._plan
        if batches is not None:
            _check_integer("batches", batches, least=0)
            if self._user_stages():
                raise StateError(
                    f"stage {next(iter(self._user_stages()))} remembers, so batches cannot be counted past it"
                )
            i = int(self._place[0]) + batches * (plan.batch_size or 1) * plan.topology()[1]
            return self._state(min(i, self._end(i)), {})
        if self._cursor is not None:
            return self._state(*self._cursor.saved)
        if self._place[1]:
            raise StateError(
                "the places of a DataLoader's workers are hidden by its prefetching; use state_dict(batches=n) after n "
                "batches, iterate the stream without workers, or use torchdata's StatefulDataLoader"
            )
        return self._state(int(self._place[0]), self._user_state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, saved by any rank of any number of ranks.

        Raises ``StateError`` naming the field and both values where data, seed or shape differ, and while an iterator
        is live.
        """
        self._refuse_live("load_state_dict")
        if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
            found = state.get("version") if isinstance(state, dict) else type(state).__name__
            raise StateError(f"state version {found!r}, but this release reads {STATE_VERSION}")
        for field, ours in self._plan.shape().items():
            saved = state.get("shape", {}).get(field)
            if saved != ours:
                raise StateError(f"{field} was {saved!r} when the state was saved, but is {ours!r} in this stream")
        remembered = state.get("stages", {})
        names = sorted(self._user_stages())
        if sorted(remembered) != names:
            raise StateError(
                f"stages that remember were {sorted(remembered)} in the state, but are {names} in this stream"
            )
        if remembered and (state["rank"], state["world_size"]) != self._plan.topology():
            raise StateError(
                f"stage {names[0]} remembers, so this state belongs to rank {state['rank']} of {state['world_size']}, "
                "but this is rank {} of {}".format(*self._plan.topology())
            )
        self._move(state["i"], remembered, state.get("worker_batches", 0))

    def set_epoch(self, epoch: int) -> None:
        """Move the place to the start of ``epoch``: the next ``iter()`` begins there."""
        self._refuse_live("set_epoch")
        _check_integer("epoch", epoch, least=0)
        core = self._plan.core(dense=False)
        self._move(core.first(epoch), {}, 0)

    def _move(self, i: int, user_state: dict[str, Any], worker_batches: int) -> None:
        self._place[0] = i
        self._place[1] = 0
        self._user_state = copy.deepcopy(user_state)
        self._worker_batches = worker_batches
        self._cursor = None

    def _refuse_live(self, what: str) -> None:
        iterator = self._iterator() if self._iterator else None
        if iterator is not None and self._cursor is not None and not self._cursor.ended:
            raise StateError(
                f"{what} while an iterator of this stream is live would be ignored by it; end or drop it first"
            )

    def _state(self, i: int, stages: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = {"version": STATE_VERSION, "i": i, "shape": self._plan.shape()}
        if stages:
            rank, world_size = self._plan.topology()
            state |= {"stages": copy.deepcopy(stages), "rank": rank, "world_size": world_size}
        if get_worker_info() is not None and self._cursor is not None:
            # A loader's worker goes on as this worker: from the common place, past its own batches.
            state |= {"i": int(self._place[0]), "worker_batches": self._cursor.batches}
        return state

    def _end(self, otherwise: int) -> int:
        """Return the number of global sequences, or ``otherwise`` for an endless stream."""
        length = self._plan.core(dense=False).length if self._plan.epochs is not None else None
        bounds = [bound for bound in (length, self._plan.take) if bound is not None]
        return min(bounds, default=otherwise)

    def _user_stages(self) -> dict[str, Any]:
        steps = (*self._plan.steps, *self._plan.batch_steps)
        return {f"{n}.{type(step).__name__}": step for n, step in enumerate(steps) if getattr(step, "remembers", ())}

    # Iteration

    def __iter__(self) -> Iterator[Item]:
        cursor = _Cursor(int(self._place[0]), self._worker_batches)
        if get_worker_info() is not None:
            self._place[1] = 1
        iterator = _StreamIterator(_run(self._plan, cursor, self._user_state), cursor)
        self._cursor, self._iterator = cursor, weakref.ref(iterator)
        return iterator

    def __getstate__(self) -> dict[str, Any]:
        # A worker process has no process group of its own, so what ours says travels along.
        rank, world_size = self._plan.topology()
        plan = replace(self._plan, rank=rank, world_size=world_size)
        return {**self.__dict__, "_plan": plan, "_cursor": None, "_iterator": None}

    def _with(self, **changes: Any) -> Stream:
        return Stream(replace(self._plan, **changes))

    def _before_layout(self, method: str) -> None:
        if self._plan.layout is not None or self._plan.batch_size is not None or self._plan.steps:
            raise ConfigError(f".{method}() comes before .pack(), .documents(), .map() and .batch(), and once")


class ShardDataset(Stream):
    """The tokens of a dataset directory, of shards by braces, glob, list or URL, or of plain webdataset tars.

    ``split`` names the split of a directory. ``epochs`` bounds the stream (None: endless). ``verify=True`` hashes
    each shard before its first use. At most ``max_open_shards`` are open at a time. Tars without an index are scanned
    once; the index is kept beside them or in ``cache_dir``. ``eos_id`` pads what is short (default: the manifest's,
    else 0).

    Raises ``ManifestError`` for an incomplete dataset or unknown split, and ``ShardError`` for a shard that disagrees
    with its manifest, when it is opened.
    """

    def __init__(
        self,
        source: Source,
        split: str = "train",
        *,
        epochs: int | None = None,
        verify: bool = False,
        max_open_shards: int = 512,
        cache_dir: str | None = None,
        eos_id: int | None = None,
    ) -> None:
        if epochs is not None:
            _check_integer("epochs", epochs, least=1)
        _check_integer("max_open_shards", max_open_shards, least=1)
        data = ShardFiles(source, split, verify=verify, cache_dir=cache_dir, eos_id=eos_id)
        super().__init__(Plan(data=data, epochs=epochs, max_open_shards=max_open_shards))

    @classmethod
    def from_tokens(
        cls, tokens: Any, *, lengths: Any = None, eos_id: int | None = None, epochs: int | None = None
    ) -> Stream:
        """Stream a 1-D array of token ids in memory.

        ``lengths`` says how many tokens each document has; without it a document ends at every ``eos_id``, and without
        either the array is one document.
        """
        import numpy as np

        array = np.asarray(tokens)
        if array.ndim != 1 or array.dtype.kind not in "ui":
            raise ConfigError(f"tokens must be a 1-D array of integers, got {array.dtype} of shape {array.shape}")
        if lengths is None:
            ends = np.flatnonzero(array == eos_id) + 1 if eos_id is not None else np.zeros(0, np.int64)
            lengths = np.diff(np.unique(np.concatenate([[0], ends, [len(array)]])))
        data = MemoryData(array, np.asarray(lengths, dtype=np.int64), eos_id or 0, None)
        return Stream(Plan(data=data, epochs=epochs))

    @classmethod
    def from_texts(cls, texts: list[str], tokenizer: Any, *, epochs: int | None = None) -> Stream:
        """Tokenize ``texts`` now and stream them from memory; ``tokenizer`` is a name, path or loaded tokenizer."""
        import numpy as np

        from ..text.tokens import load_tokenizer

        loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        documents = [np.append(ids, loaded.eos_id).astype(loaded.dtype) for ids in loaded.encode_batch(list(texts))]
        lengths = np.asarray([len(document) for document in documents], dtype=np.int64)
        tokens = np.concatenate([np.zeros(0, loaded.dtype), *documents])
        return Stream(Plan(data=MemoryData(tokens, lengths, loaded.eos_id, loaded.sha256), epochs=epochs))


class _Map:
    """A function of one item, as a stage."""

    def __init__(self, function: Callable[[Item], Any]) -> None:
        if not callable(function):
            raise ConfigError(f"map needs a function, got {type(function).__name__}")
        self.function = function

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        return map(self.function, items)


class _Cursor:
    """How far an iterator came: the place after the item handed out last, and the batches this worker made."""

    def __init__(self, i: int, batches: int) -> None:
        self.start = i
        self.batches = batches
        self.saved: tuple[int, dict[str, Any]] = (i, {})
        self.ended = False


class _StreamIterator:
    """Hands out items, and notes the place that rides with each before it does."""

    def __init__(self, items: Iterator[tuple[int, int, dict[str, Any], Item]], cursor: _Cursor) -> None:
        self._items = items
        self._cursor = cursor

    def __iter__(self) -> _StreamIterator:
        return self

    def __next__(self) -> Item:
        try:
            i, batches, stages, item = next(self._items)
        except BaseException:
            self._cursor.ended = True
            raise
        self._cursor.saved = (i, stages)
        self._cursor.batches = batches
        return item


def _run(plan: Plan, cursor: _Cursor, user_state: dict[str, Any]) -> Iterator[tuple[int, int, dict[str, Any], Item]]:
    """Yield (place after it, batches made by this worker, what stages remember, item)."""
    cursor.saved = (cursor.start, user_state)
    items = _made_ahead(plan, cursor.start, cursor.batches, user_state)
    if plan.prefetch:
        return read_ahead(items, plan.prefetch)
    return items


def _made_ahead(
    plan: Plan, start: int, done: int, user_state: dict[str, Any]
) -> Iterator[tuple[int, int, dict[str, Any], Item]]:
    place = [start, done]
    remembering: dict[str, Any] = {}

    def run_steps(items: Iterator[Any], steps: tuple[Any, ...], number: int) -> Iterator[Any]:
        items = items if plan.numpy else map(to_torch, items)
        for n, step in enumerate(steps, number):
            items = _with_memory(step, n, remembering, user_state)(items)
        return items

    by_sample = plan.batch_size is None or bool(plan.steps)
    items: Iterator[Any] = _items(plan, place, by_sample)
    if by_sample:
        items = run_steps(items, plan.steps, 0)
    if plan.batch_size is not None:
        items = _stacked(items, plan.batch_size) if by_sample else items
        items = run_steps(items, plan.batch_steps, len(plan.steps))
    if plan.device:
        items = place_on_device(items, plan.device)
    for item in items:
        stages = {
            name: {field: copy.deepcopy(getattr(step, field)) for field in step.remembers}
            for name, step in remembering.items()
        }
        yield place[0], place[1], stages, item


def _with_memory(step: Any, number: int, remembering: dict[str, Any], user_state: dict[str, Any]) -> Any:
    """Return a stage for one iteration: one that remembers is copied, so that iterators do not share what it knows."""
    if not getattr(step, "remembers", ()):
        return step
    name = f"{number}.{type(step).__name__}"
    own = copy.deepcopy(step)
    for field, value in user_state.get(name, {}).items():
        setattr(own, field, copy.deepcopy(value))
    remembering[name] = own
    return own


def _items(plan: Plan, place: list[int], by_sample: bool) -> Iterator[Item]:
    """Yield this rank's (and worker's) samples or batches in order, moving ``place`` past each before it is yielded."""
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
    rank, world_size = plan.topology()
    core, collate = plan.core(dense=workers == 1), plan.collator()
    size = plan.batch_size or 1
    start, done = place
    step = size * world_size
    first = start + (rank - start) % world_size
    bounds = [bound for bound in (core.length, plan.take) if bound is not None]
    end = min(bounds) if bounds else None
    batches = None if end is None else _batches(plan, max(0, end - start), max(0, end - first), step)
    try:
        number = worker + done * workers
        while batches is None or number < batches:
            begin = first + number * step
            stop = begin + step if end is None else max(begin, min(begin + step, end))
            numbers = range(begin, stop, world_size)
            for row in range(size) if by_sample else [size - 1]:
                after = start + number * step + (row + 1) * world_size
                place[0] = after if end is None else min(after, end)
                place[1] += row == size - 1
                if by_sample:
                    yield row_of(collate(core, numbers[row : row + 1], 1))  # type: ignore[arg-type]
                else:
                    yield collate(core, numbers, size)  # type: ignore[arg-type]
            number += workers
    finally:
        core.close()


def _batches(plan: Plan, left: int, ours: int, step: int) -> int:
    """Return how many batches (or samples) a bounded stream has left for this rank."""
    if plan.batch_size is None:
        return -(-ours // step)
    return left // step if plan.drop_last else -(-left // step)


def _stacked(samples: Iterator[Item], size: int) -> Iterator[Item]:
    """Group samples that stages changed into batches; the last one may be smaller."""
    while rows := list(islice(samples, size)):
        yield stack(rows)


def _group_topology(group: Any) -> tuple[int, int]:
    if hasattr(group, "get_local_rank"):  # a DeviceMesh
        if group.ndim != 1:
            raise ConfigError(f"a mesh of {group.ndim} dimensions: give the data-parallel one, as mesh['dp']")
        return group.get_local_rank(), group.size()
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return dist.get_rank(group), dist.get_world_size(group)
    raise ConfigError(f"shard needs a rank and a world size, a mesh or a process group, got {group!r}")


def _check_integer(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")


def _check_labels(labels: str) -> bool:
    if labels not in ("next", "same"):
        raise ConfigError(f"labels must be 'next' (shifted already) or 'same' (the model shifts), got {labels!r}")
    return labels == "same"

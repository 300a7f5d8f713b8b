"""The composable chain: every method returns a new stage, every stage is a torch ``IterableDataset``.

    ShardDataset(...) -> .shuffle() -> .pack() or .documents() -> .map() -> .batch() -> .map() -> .to()

A stage holds one frozen ``Plan`` and one ``Place``, at which every ``iter()`` begins. Iterating makes the plan's
random-access core and asks it for the global sequences that belong to this rank and worker (``loop.py``); so a place,
one integer, is all that a state needs.

What plugs in where: a source offers ``Data`` (counts of every shard, fingerprint, ``open``; ``data.py``); another kind
of sequence offers a core (``length``, ``first``, ``epoch``, ``bytes_read``, ``close``; ``sequences.py``) with a
collator that makes batches of it, and ``Plan.core`` and ``Plan.collator`` choose them by the layout.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..errors import ConfigError, StateError
from .arguments import check_integer, group_topology, labels_are_inputs
from .cursors import beginning
from .lanes import lanes_core
from .loop import Map, Take, counts_items, resolved, run, share_of
from .mixing import MixedData
from .order.mixture import exact_weights, weights_from_json, weights_to_json
from .place import Mark, Place
from .plan import DocumentLayout, PackLayout, Plan, pack_layout
from .progress import Progress, StreamIterator
from .state import from_state, to_state

Item = dict[str, Any]


class Stream(IterableDataset):
    """A stage: iterate it, or call a method for the next stage.

    Iterating yields dicts of torch tensors: documents or sequences of this rank (1-D), or batches after ``batch``.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._place = Place(Mark(0))
        # Where a loader that saves its workers' states put this worker, until it has begun there.
        self._worker_mark: Mark | None = None
        # Rank and world size of the process that started this worker, which has no process group of its own.
        self._carried: tuple[int, int] | None = None
        self._progress: Progress | None = None
        self._iterators: list[weakref.ref[StreamIterator]] = []

    # Stages

    def shuffle(self, seed: int = 0, *, window: int | None = None, lanes: int | None = None) -> Stream:
        """Shuffle shards and, inside windows of ``window`` shards, documents; read at ``lanes`` places of the epoch.

        The defaults follow from the manifest: windows of 120,000 documents (4 to 64 shards), 48 lanes or more. Of a
        ``TextDataset`` the window counts documents (default: 16,384) of all its lanes (default: 48).
        """
        self._before_layout("shuffle")
        check_integer("seed", seed, least=0)
        for name, value in (("window", window), ("lanes", lanes)):
            if value is not None:
                check_integer(name, value, least=1)
        return self._with(seed=seed, window=window, lanes=lanes)

    def filter(self, predicate: Callable[[Any], Any]) -> Stream:
        """Keep the documents for which ``predicate`` is true: it gets the 1-D array of ids, or a text's record.

        A record has ``text``, ``id``, ``file``, ``line`` and ``source``. The predicate must depend on what it gets alone.
        Nobody knows ahead what it keeps, so each lane keeps a cursor (a cursor stream): every rank takes equally many
        steps even if nearly all documents of one rank go, and ranks save their own lanes (``merge_states``). A lane of
        which a whole epoch is rejected raises ``ConfigError``.
        """
        self._before_layout("filter")
        if not callable(predicate):
            raise ConfigError(f"filter needs a function, got {type(predicate).__name__}")
        if isinstance(self._plan.data, MixedData):
            raise ConfigError(
                "a mix counts the tokens of its sources ahead, so it cannot be filtered; build filtered ones"
            )
        return self._with(filters=(*self._plan.filters, predicate))

    def pack(
        self,
        seq_len: int,
        *,
        stride: int | None = None,
        shift: int | str = 1,
        boundaries: bool = False,
        labels: str = "next",
        best_fit: bool = False,
    ) -> Stream:
        """Cut the token stream into sequences of ``seq_len`` tokens, ``stride`` (default: ``seq_len``) tokens apart.

        ``labels`` are the tokens ``shift`` ahead, or with ``labels="same"`` the inputs themselves, for models that
        shift by themselves. ``shift="divisors"`` draws a divisor of ``seq_len`` below it for each step (a batch on
        every rank; before ``batch``, a sequence on every rank), equal on all ranks, gives ids, labels and
        ``position_ids`` as ``[batch, seq_len // shift, shift]``, and the drawn one as ``batch["shift"]``; another
        global batch size makes other steps, so it draws other shifts. ``boundaries=True`` adds ``position_ids``,
        ``cu_seqlens`` and ``max_seqlen`` and masks labels that lie in another document. ``best_fit=True`` packs whole
        documents, cutting only those longer than ``seq_len``, with a little padding (a cursor stream, see ``filter``).
        """
        self._before_layout("pack")
        check_integer("seq_len", seq_len, least=1)
        stride = seq_len if stride is None else stride
        check_integer("stride", stride, least=1)
        if stride > seq_len:
            raise ConfigError(
                f"stride {stride} > seq_len {seq_len} would skip tokens; use a stride of at most {seq_len}"
            )
        if best_fit and stride != seq_len:
            raise ConfigError(f"best_fit packs each document once; remove stride={stride}, or best_fit")
        if best_fit and isinstance(self._plan.data, MixedData):
            raise ConfigError(
                "a mix counts the tokens of its sources ahead, so best_fit cannot pack it; remove best_fit"
            )
        return self._with(layout=pack_layout(seq_len, stride, shift, boundaries, labels, best_fit))

    def sample(self, seq_len: int, *, shift: int | str = 1, boundaries: bool = False, labels: str = "next") -> Stream:
        """Draw sequences of ``seq_len`` tokens from random places of the whole split, with replacement.

        Where a sequence begins is a hash of the seed given to ``shuffle`` (else 0) and its number, any token alike. An
        epoch is as many sequences as there are ``seq_len`` tokens. Options are those of ``pack``. Raises ``ConfigError``
        where ``shuffle`` was given a window or lanes, which would change nothing.
        """
        self._before_layout("sample")
        check_integer("seq_len", seq_len, least=1)
        if self._plan.by_cursors:
            raise ConfigError(
                ".sample() needs to know ahead where tokens lie; use .pack() for text and after .filter()"
            )
        if self._plan.window is not None or self._plan.lanes is not None:
            raise ConfigError(".sample() draws from the whole split at once; remove window= and lanes= from .shuffle()")
        return self._with(layout=pack_layout(seq_len, None, shift, boundaries, labels))

    def documents(
        self,
        max_length: int | None = None,
        *,
        pad_to_multiple_of: int = 1,
        labels: str = "next",
        bucket: int | None = None,
    ) -> Stream:
        """Yield whole documents, cut at ``max_length`` tokens; batches are padded, with an ``attention_mask``.

        ``bucket`` brings that many documents of similar length together, of every 64 buckets in the global order, for
        less padding: give it the batch size times the ranks, or a multiple.
        """
        self._before_layout("documents")
        if max_length is not None:
            check_integer("max_length", max_length, least=1)
        check_integer("pad_to_multiple_of", pad_to_multiple_of, least=1)
        same = labels_are_inputs(labels)
        if bucket is not None:
            check_integer("bucket", bucket, least=1)
            if self._plan.by_cursors:
                raise ConfigError("bucket needs to know lengths ahead; remove it for text and after .filter()")
        layout = DocumentLayout(
            max_length=max_length, pad_to_multiple_of=pad_to_multiple_of, same_labels=same, bucket=bucket
        )
        return self._with(layout=layout)

    def batch(self, batch_size: int, *, last: str = "pad", dtype: str = "int64") -> Stream:
        """Collate ``batch_size`` sequences per rank; every rank gets equally many batches.

        At the end of a bounded stream, ``last="pad"`` fills missing rows with end-of-text ids and labels of -100
        (``valid_tokens`` tells how many labels count), ``last="drop"`` drops what does not fill a batch on every rank,
        and logs how much. ``dtype="stored"`` keeps packed ids and labels in the width of the shards (uint16 or uint32),
        where -100 has no room: ``ignored`` then lists the flat places of labels to mask, if there are any.
        """
        self._before_device("batch")
        if self._plan.batch_size is not None:
            raise ConfigError("a stream is batched once; remove the second .batch()")
        check_integer("batch_size", batch_size, least=1)
        if (
            isinstance(self._plan.layout, PackLayout)
            and self._plan.layout.shift is None
            and not counts_items(self._plan)
        ):
            raise ConfigError(
                "shift='divisors' draws one shift for a batch, and a stage given to .apply() may join samples of "
                "several; put .batch() before .apply()"
            )
        if last not in ("pad", "drop"):
            raise ConfigError(f"last must be 'pad' or 'drop', got {last!r}")
        if dtype not in ("int64", "stored"):
            raise ConfigError(f"dtype must be 'int64' or 'stored', got {dtype!r}")
        return self._with(batch_size=batch_size, drop_last=last == "drop", stored=dtype == "stored")

    def map(self, function: Callable[[Item], Any]) -> Stream:
        """Apply ``function`` to every sample, or to every batch after ``batch``."""
        if not callable(function):
            raise ConfigError(f"map needs a function, got {type(function).__name__}")
        return self._with_step(Map(function), "map")

    def apply(self, stage: Callable[[Iterator[Any]], Iterator[Any]]) -> Stream:
        """Run a stage of your own: a generator function over the items before it.

        One that must remember is an object whose ``remembers`` names the attributes (plain JSON values) to keep in the
        state. Its state, and that of a stage that drops items, belongs to one rank: another world size refuses it.
        Every worker of a loader runs such a stage over all items of its rank, so the order stays the same. On several
        ranks one that drops or adds items needs an endless stream and a ``take`` after it, else it raises
        ``ConfigError``: ranks would take unequally many steps.

        >>> def every_other(items):
        ...     for number, item in enumerate(items):
        ...         if number % 2 == 0:
        ...             yield item
        """
        if not callable(stage):
            raise ConfigError(f"a stage must be callable with an iterator, got {type(stage).__name__}")
        return self._with_step(stage, "apply")

    def take(self, count: int) -> Stream:
        """End after the first ``count`` global sequences, or after ``batch``: after ``count`` batches per rank.

        Counted from the beginning of the stream, not from the place; after a stage that drops items, what it let
        through is counted.
        """
        check_integer("count", count, least=0)
        plan = self._plan
        if not counts_items(plan):
            return self._with_step(Take(count), "take")
        name = "take" if plan.batch_size is None else "take_batches"
        before = getattr(plan, name)
        return self._with(**{name: count if before is None else min(count, before)})

    def shard(self, rank: Any, world_size: int | None = None) -> Stream:
        """State which part is ours: a rank and a world size, a device mesh, or a process group.

        Without it, torch.distributed says so where it is initialised, else the stream is one rank's. Ranks that must
        see the same batches, as under tensor parallelism, state the same rank.
        """
        if world_size is None:
            rank, world_size = group_topology(rank)
        check_integer("world_size", world_size, least=1)
        check_integer("rank", rank, least=0)
        if rank >= world_size:
            raise ConfigError(f"rank must be below world_size, got rank {rank} of {world_size}")
        return self._with(rank=rank, world_size=world_size)

    def to(self, device: str | torch.device) -> Stream:
        """Give tensors on ``device``, ids and labels as int64; on a GPU, copied ahead of time from pinned memory.

        Packed ids travel in their stored width and are widened there. A batch stays valid for as long as it is
        referred to. The last stage but ``prefetch``, ``take`` and ``shard``.
        """
        if self._plan.batch_size is None:
            raise ConfigError(".to(device) moves batches; add .batch(size) before it")
        if self._plan.numpy or self._plan.stored:
            raise ConfigError(".to(device) gives int64 tensors; remove .numpy() and dtype='stored' before it")
        return self._with(device=str(torch.device(device)))

    def numpy(self) -> Stream:
        """Give NumPy arrays for torch tensors."""
        self._before_device("numpy")
        return self._with(numpy=True)

    def prefetch(self, count: int = 2) -> Stream:
        """Make up to ``count`` items ahead in a thread (default: 2 for a GPU, none else)."""
        check_integer("count", count, least=0)
        return self._with(prefetch=count)

    # Place

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the place after the items handed out by the latest iterator, as plain JSON.

        With ``batches``, the place after that many of this rank's batches (or samples) from where ``iter()`` began:
        for a plain DataLoader, whose workers hide their places; without it, that raises ``StateError``.
        """
        if batches is not None:
            check_integer("batches", batches, least=0)
            if not counts_items(self._plan):
                raise StateError(
                    "a stage given to .apply() may drop items, so batches cannot be counted past it; iterate the stream "
                    "without workers, or use torchdata's StatefulDataLoader"
                )
            if self._plan.by_cursors:
                raise StateError(
                    "nobody can count batches of text, filters or best-fit packing ahead, each lane has its own cursor; "
                    "iterate the stream without workers, or use torchdata's StatefulDataLoader"
                )
            plan, mark = self._resolved(), self._place.get()
            i = mark.i + batches * (plan.batch_size or 1) * plan.world_size
            end = plan.end(plan.core().length)
            return self._state(Mark(i if end is None else max(mark.i, min(i, end))))
        if self._progress is not None:
            return self._state(self._progress.mark)
        if self._place.in_workers and get_worker_info() is None:
            counting = "" if self._plan.by_cursors else "use state_dict(batches=n) after n batches, "
            raise StateError(
                f"the places of a DataLoader's workers are hidden by its prefetching; {counting}iterate the stream "
                "without workers, or use torchdata's StatefulDataLoader"
            )
        return self._state(self._place.get())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, saved by any rank of any number of ranks: every ``iter()`` starts there.

        Of a cursor stream each rank loads what it saved, or all load what ``pipeline.merge_states`` made of all ranks'.

        Raises ``StateError`` naming the field and both values where data, seed or shape differ, and while an iterator
        is live.
        """
        self._refuse_live("load_state_dict")
        mark = from_state(state, self._resolved(), worker=get_worker_info() is not None)
        self._overtake("load_state_dict")
        if get_worker_info() is not None:
            self._worker_mark = mark
        else:
            self._place.set(mark)

    def set_epoch(self, epoch: int) -> None:
        """Move the place to the start of ``epoch``: every ``iter()`` starts there.

        Raises ``ConfigError`` for an epoch that a bounded stream does not have.
        """
        self._refuse_live("set_epoch")
        check_integer("epoch", epoch, least=0)
        if self._plan.epochs is not None and epoch >= self._plan.epochs:
            raise ConfigError(
                f"the stream ends before epoch {epoch}: it was made with epochs={self._plan.epochs}; raise epochs, or "
                "leave it out and use .take()"
            )
        if self._plan.by_cursors:
            self._place.set(Mark(0, lanes=beginning(epoch, self._plan.order_shape()[1])))
        else:
            self._place.set(Mark(self._plan.core().first(epoch)))
        self._overtake("set_epoch")

    def set_weights(self, weights: dict[str, float]) -> None:
        """Change the weights of a mix from the next row of its lanes on; every ``iter()`` goes on from there.

        What was handed out before stays as it was, so no source loses or repeats a sequence. Raises ``StateError``
        while an iterator is live.
        """
        self._refuse_live("set_weights")
        plan = self._plan
        if not isinstance(plan.data, MixedData):
            raise ConfigError("set_weights is for streams of pipeline.mix")
        mark = self._progress.mark if self._progress is not None else self._place.get()
        lanes = plan.order_shape()[1]
        schedule = weights_from_json(mark.weights) if mark.weights else plan.weights
        place = -(-mark.i // lanes) * lanes
        kept = tuple(segment for segment in schedule if segment[0] < place or segment[0] == 0)
        changed = (*kept, (place, exact_weights(weights, list(plan.data.sources))))
        self._place.set(replace(mark, weights=weights_to_json(changed)))
        self._overtake("set_weights")

    def stats(self) -> dict[str, Any]:
        """Return what the latest iterator did so far, cheap enough for every step.

        ``items`` and ``tokens`` (labels that counted) handed out, ``seconds`` since it began, ``tokens_per_second``,
        ``waited_seconds`` that its consumer spent waiting for it and their ``waited_share``, ``bytes_read`` out of
        shards, and the place: ``i`` (global sequence) and ``epoch``; of a mix also ``sources``, with the share asked and
        served of each; of a cursor stream how many ``documents`` were read, ``rejected``, ``bad_records`` and
        ``damaged_files``. In a loader the workers count, not this process.
        """
        progress = self._progress or Progress(self._place.get(), None)
        return progress.stats(self._plan)

    def _refuse_live(self, what: str) -> None:
        for iterator in self._held():
            if iterator.progress.began is not None and iterator.progress.ended is None:
                raise StateError(
                    f"{what} while an iterator of this stream is live would be ignored by it; end or drop it first"
                )

    def _overtake(self, what: str) -> None:
        """Leave iterators that have not begun behind: they know the old place, and would go there without a word."""
        self._progress = None
        for iterator in self._held():
            iterator.overtaken_by = what

    def _held(self) -> list[StreamIterator]:
        """Return the iterators of this stream that somebody still holds."""
        return [iterator for held in self._iterators if (iterator := held()) is not None]

    def _state(self, mark: Mark) -> dict[str, Any]:
        return to_state(mark, self._resolved())

    # Iteration

    def __iter__(self) -> Iterator[Item]:
        info = get_worker_info()
        mark, workers = self._place.get(), 1
        if info is not None:
            self._place.note_worker()
            workers = info.num_workers
            mark = replace(mark, skip=info.id)
            if self._worker_mark is not None:
                mark, self._worker_mark = self._worker_mark, None
        plan = self._resolved()
        if mark.weights is not None:
            plan = replace(plan, weights=weights_from_json(mark.weights))
        core = lanes_core(plan, mark, *share_of(plan, mark, workers)) if plan.by_cursors else plan.core()
        progress = Progress(mark, core)
        iterator = StreamIterator(run(plan, core, mark, workers), progress, workers)
        self._progress = progress
        self._iterators = [weakref.ref(each) for each in (*self._held(), iterator)]
        return iterator

    def _topology(self) -> tuple[int, int]:
        carried = self._carried
        if carried is not None and self._plan.rank is None and get_worker_info() is not None:
            return carried
        return self._plan.topology()

    def _resolved(self) -> Plan:
        return resolved(self._plan, *self._topology())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_carried": self._topology(), "_progress": None, "_iterators": []}

    def _with(self, **changes: Any) -> Stream:
        return Stream(replace(self._plan, **changes))

    def _with_step(self, step: Any, method: str) -> Stream:
        self._before_device(method)
        name = "steps" if self._plan.batch_size is None else "batch_steps"
        return self._with(**{name: (*getattr(self._plan, name), step)})

    def _before_device(self, method: str) -> None:
        if self._plan.device is not None:
            raise ConfigError(f".{method}() comes before .to(), which moves what it gives")

    def _before_layout(self, method: str) -> None:
        if self._plan.layout is not None or self._plan.batch_size is not None or self._plan.steps:
            raise ConfigError(f".{method}() comes before .pack(), .documents(), .map() and .batch(), and once")

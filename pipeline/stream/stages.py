"""The composable chain: every method returns a new stage, every stage is a torch ``IterableDataset``.

    ShardDataset(...) -> .shuffle() -> .pack() or .documents() -> .map() -> .batch() -> .map() -> .to()

A stage holds one frozen ``Plan`` and one position, at which every ``iter()`` begins. Iterating makes the plan's
random-access core and asks it for the global sequences that belong to this rank and worker (``loop.py``); so a
position, one integer, is all that a state needs.

What plugs in where: a source offers ``Data`` (counts of every shard, fingerprint, ``open``; ``data.py``); another kind
of sequence offers a core (``first``, ``epoch``, ``bytes_read``, ``close``; ``sequences.py``) with a
collator that makes batches of it, and ``Plan.core`` and ``Plan.collator`` choose them by the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ..errors import ConfigError
from .arguments import check_integer, device_given, group_topology, labels_are_inputs
from .describe import describe, layout_stage, stages
from .identity import identified
from .loader import Loader
from .mixing import MixedData
from .plan import DocumentLayout, PackLayout, pack_layout
from .positioned import PositionedStream
from .steps import Map, Take, counts_items

Item = dict[str, Any]


class Stream(PositionedStream):
    """A stage: iterate it, or call a method for the next stage.

    Iterating yields dicts of torch tensors: documents or sequences of this rank (1-D), or batches after ``batch``.
    """

    # Stages

    def shuffle(self, seed: int = 0, *, window: int | None = None, lanes: int | None = None) -> Stream:
        """Shuffle shards and, inside windows of ``window`` shards, documents; read at ``lanes`` places of the epoch.

        The defaults follow from the manifest: windows of 120,000 documents (4 to 64 shards), 48 lanes or more. Of a
        ``TextDataset`` the window counts documents (default: 16,384) of all its lanes (default: 48).
        """
        self._before_layout("shuffle")
        if self._plan.seed is not None:
            raise ConfigError(
                f"a stream is shuffled once; remove the second .shuffle(), or that of seed={self._plan.seed}"
            )
        check_integer("seed", seed, least=0)
        for name, value in (("window", window), ("lanes", lanes)):
            if value is not None:
                check_integer(name, value, least=1)
        return self._with(seed=seed, window=window, lanes=lanes)

    def filter(self, predicate: Callable[[Any], Any], *, name: str | None = None) -> Stream:
        """Keep the documents for which ``predicate`` is true: it gets the 1-D array of ids, or a text's record.

        A record has ``text``, ``id``, ``file``, ``line`` and ``source``. The predicate must depend on what it gets alone.
        Nobody knows ahead what it keeps, so each lane keeps a cursor (a cursor stream): every rank takes equally many
        steps even if nearly all documents of one rank go, and ranks save their own lanes (``merge_states``). A lane of
        which a whole epoch is rejected raises ``ConfigError``.

        A state belongs to the filters that it was made with: to the code of each and the values that it reads, or to its
        ``name``, which a filter needs where those cannot be compared, and which must change when the filter does.
        """
        self._before_layout("filter")
        if not callable(predicate):
            raise ConfigError(f"filter needs a function, got {type(predicate).__name__}")
        if isinstance(self._plan.data, MixedData):
            raise ConfigError(
                "a mix counts the tokens of its sources ahead, so it cannot be filtered; build filtered ones"
            )
        return self._with(filters=(*self._plan.filters, identified(predicate, name)))

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
        self._refuse_mix("sample")
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
        self._refuse_mix("documents")
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
        where -100 has no room: ``ignored`` then lists the flat places of labels to mask, if there are any. Samples that a
        ``.map()`` before ``batch`` gets are int64 all the same, and what it gives is narrowed here.
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
        if dtype == "stored" and isinstance(self._plan.layout, DocumentLayout):
            raise ConfigError("dtype='stored' is for packed sequences; remove it after .documents(), which gives int64")
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
        referred to. The last stage but ``prefetch``, ``take`` and ``shard``. Raises ``ConfigError`` for a device that this
        process cannot use.
        """
        if self._plan.batch_size is None:
            raise ConfigError(".to(device) moves batches; add .batch(size) before it")
        if self._plan.numpy or self._plan.stored:
            raise ConfigError(".to(device) gives int64 tensors; remove .numpy() and dtype='stored' before it")
        if self._plan.device is not None:
            raise ConfigError(f"a stream is moved once; remove .to({self._plan.device!r}) or the second .to()")
        return self._with(device=device_given(device))

    def numpy(self) -> Stream:
        """Give NumPy arrays for torch tensors."""
        self._before_device("numpy")
        return self._with(numpy=True)

    def prefetch(self, count: int = 2) -> Stream:
        """Make up to ``count`` items ahead in a thread (default: 2 for a GPU, none else)."""
        check_integer("count", count, least=0)
        return self._with(prefetch=count)

    def loader(self, keys: str | Callable[[Any], Any] | None = None, length: int | None = None) -> Loader:
        """Return what a training framework takes in place of a ``DataLoader``: see `Loader`.

        ``keys``: None gives the batches as they are; ``"hf"`` gives ``input_ids``, ``labels``, ``attention_mask`` and
        ``position_ids``, as far as there are any, labels unshifted, as models of ``transformers`` take them;
        ``"torchtitan"`` gives ``({"input", "positions"}, labels)``, flattened; a function gives what it makes of a batch.
        ``length`` is what ``len()`` says of a stream that does not know its own (default: 2**31).
        """
        if length is not None:
            check_integer("length", length, least=1)
        return Loader(self, keys, length)

    def __repr__(self) -> str:
        return describe(self._plan, self._position.get(), self._context())

    def _with(self, **changes: Any) -> Stream:
        return Stream(replace(self._plan, **changes))

    def _with_step(self, step: Any, method: str) -> Stream:
        self._before_device(method)
        name = "steps" if self._plan.batch_size is None else "batch_steps"
        return self._with(**{name: (*getattr(self._plan, name), step)})

    def _before_device(self, method: str) -> None:
        if self._plan.device is not None:
            raise ConfigError(f".{method}() comes before .to(), which moves what it gives; write it before .to()")

    def _refuse_mix(self, method: str) -> None:
        if isinstance(self._plan.data, MixedData):
            raise ConfigError(f"a mix is packed; add .pack(seq_len) in place of .{method}()")

    def _before_layout(self, method: str) -> None:
        plan = self._plan
        layout = layout_stage(plan)
        if layout is None and not plan.steps and plan.batch_size is None:
            return
        if layout is not None and method in ("pack", "sample", "documents"):
            raise ConfigError(f".{method}() comes once: {layout} says already what a sample is; remove one of the two")
        later = stages(plan)
        later = (
            later[later.index(layout) :] if layout is not None else [each for each in later if _follows_layout(each)]
        )
        raise ConfigError(f".{method}() comes before {later[0]}; move it there, as in .{method}(...){''.join(later)}")


def _follows_layout(stage: str) -> bool:
    return not stage.startswith((".filter(", ".shuffle("))

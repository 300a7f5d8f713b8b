"""The chain of a stream: every method returns a new stage, and every stage is a torch ``IterableDataset``.

    ShardDataset(...) -> .shuffle() -> .pack() or .documents() -> .map() -> .batch() -> .map() -> .to()

A stage holds one frozen ``StreamConfig`` and one position, at which every ``iter()`` begins (``loader/positioned_stream.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import torch

from ..errors import ConfigError
from .arguments import (
    MOST_ROWS,
    MOST_STEPS,
    check_choice,
    check_flag,
    check_integer,
    device_given,
    group_topology,
    labels_are_inputs,
)
from .describe import describe
from .document_stages import DocumentStages
from .frameworks.framework_loader import Loader
from .layout import DocumentLayout, pack_layout, sample_layout
from .loader.user_stages import Map, Take, counts_items

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

Item = dict[str, Any]


class Stream(DocumentStages):
    """A stage: iterate it, or call a method to get the next stage.

    Iterating yields this rank's samples, or its batches after ``batch``, as dicts of torch tensors in CPU memory. A batch
    has the keys ``input_ids`` and ``labels`` (int64, ``[batch_size, seq_len]``; labels of -100 do not count) and
    ``valid_tokens`` (int: labels that count). Options add other keys; the README has a table of all. A sample has the
    same keys, and arrays without the first dimension.

    A stream is *indexed* where counts of tokens are known in advance (shards, arrays), else *sequential*: a
    ``TextDataset``, and any stream with ``filter``, ``map_documents`` without ``same_length`` or ``pack(best_fit=True)``,
    reads lanes that keep a cursor each. It goes on with any number of ranks whose batches have as many rows together as before.
    Every method raises ``ConfigError`` for values that cannot work, and where it comes too early or too late in the chain.

    >>> import pipeline
    >>> batch = next(iter(pipeline.ShardDataset.from_tokens(range(64)).shuffle(seed=0).pack(8).batch(2)))
    >>> batch["input_ids"].shape, batch["labels"].dtype, batch["valid_tokens"]
    (torch.Size([2, 8]), torch.int64, 16)
    """

    # Stages

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
        """Join documents, and cut the tokens into sequences of ``seq_len``, one every ``stride`` tokens (default: ``seq_len``).

        Gives ``input_ids`` and ``labels``, int64 ``[batch_size, seq_len]``. Labels are the tokens ``shift`` ahead; with
        ``labels="same"`` the inputs themselves, for models that shift. With ``boundaries=True``, labels that lie in another
        document than their input are -100, and batches get ``position_ids`` (int64 ``[batch_size, seq_len]``, from 0 in each
        document), ``cu_seqlens`` (int32: where documents begin in the flattened batch, and its size) and ``max_seqlen`` (int).

        ``shift="divisors"`` draws a divisor of ``seq_len`` below ``seq_len`` for each step, the same on all ranks (before
        ``batch``, a step is one sequence of each rank): ids, labels and ``position_ids`` are ``[batch_size, seq_len // shift,
        shift]``, and ``batch["shift"]`` is the drawn int. Another global batch size draws other shifts.
        ``best_fit=True`` packs whole documents, cuts only those longer than ``seq_len``, and pads a little; the stream becomes
        sequential (see ``Stream``), and warns where it pads more than 5%, with the setting that pads less. Raises
        ``ConfigError`` where ``stride`` is above ``seq_len``, and for ``best_fit`` of a mix.

        >>> import pipeline
        >>> row = next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4)))
        >>> row["input_ids"].tolist(), row["labels"].tolist()
        ([0, 1, 2, 3], [1, 2, 3, 4])
        """
        self._before_layout("pack")
        check_integer("seq_len", seq_len, least=1, most=MOST_ROWS)
        stride = seq_len if stride is None else stride
        check_integer("stride", stride, least=1)
        check_flag("boundaries", boundaries)
        check_flag("best_fit", best_fit)
        if stride > seq_len:
            raise ConfigError(
                f"stride {stride} > seq_len {seq_len} would skip tokens; use a stride of at most {seq_len}"
            )
        if best_fit and stride != seq_len:
            raise ConfigError(f"best_fit packs each document once; remove stride={stride}, or best_fit")
        if best_fit:
            self._config.data.check_stage("pack(best_fit=True)")
        if boundaries:
            self._config.data.check_stage("pack(boundaries=True)")
        return self._with(layout=pack_layout(seq_len, stride, shift, boundaries, labels, best_fit))

    def sample(self, seq_len: int, *, shift: int | str = 1, boundaries: bool = False, labels: str = "next") -> Stream:
        """Draw sequences of ``seq_len`` tokens at random positions of the whole split, with replacement.

        A sequence begins at a hash of its sequence index and the seed given to ``shuffle`` (0 without it); every token is
        equally likely. An epoch has as many sequences as ``seq_len`` fits into the tokens. Options, keys and shapes are those
        of ``pack``. Raises ``ConfigError`` for a mix, for a sequential stream, and where ``shuffle`` was given ``window`` or
        ``lanes``, which would have no effect.

        >>> import pipeline
        >>> row = next(iter(pipeline.ShardDataset.from_tokens(range(64)).shuffle(seed=1).sample(4)))
        >>> (row["labels"] - row["input_ids"]).tolist()
        [1, 1, 1, 1]
        """
        self._before_layout("sample")
        self._config.data.check_stage("sample")
        check_integer("seq_len", seq_len, least=1, most=MOST_ROWS)
        check_flag("boundaries", boundaries)
        if boundaries:
            self._config.data.check_stage("sample(boundaries=True)")
        if self._config.sequential:
            raise ConfigError(
                ".sample() needs to know in advance where tokens are; use .pack() for text and after .filter()"
            )
        if self._config.window is not None or self._config.lanes is not None:
            raise ConfigError(".sample() draws from the whole split at once; remove window= and lanes= from .shuffle()")
        return self._with(layout=sample_layout(seq_len, shift, boundaries, labels))

    def documents(
        self,
        max_length: int | None = None,
        *,
        pad_to_multiple_of: int = 1,
        labels: str = "next",
        bucket: int | None = None,
    ) -> Stream:
        """Yield whole documents, cut at ``max_length`` tokens (default: never), one in each row.

        A batch has ``input_ids``, ``labels`` and ``attention_mask`` (1 for a token, 0 for padding), all int64
        ``[batch_size, length]``. ``length`` is that of the longest document of the batch, rounded up to a multiple of
        ``pad_to_multiple_of``. Labels are as in ``pack``, and -100 for padding.
        ``bucket`` puts that many documents of similar length side by side, out of every 64 buckets of the global order, which
        saves padding: give the batch size times the number of ranks, or a multiple. Raises ``ConfigError`` for ``bucket`` of
        a sequential stream, and for a mix.

        >>> import pipeline
        >>> data = pipeline.ShardDataset.from_tokens(range(5), lengths=[3, 2], eos_id=9)
        >>> next(iter(data.documents().batch(2)))["input_ids"].tolist()
        [[0, 1, 2], [3, 4, 9]]
        """
        self._before_layout("documents")
        self._config.data.check_stage("documents")
        if max_length is not None:
            check_integer("max_length", max_length, least=1, most=MOST_ROWS)
        check_integer("pad_to_multiple_of", pad_to_multiple_of, least=1, most=MOST_ROWS)
        same = labels_are_inputs(labels)
        if bucket is not None:
            check_integer("bucket", bucket, least=1, most=MOST_ROWS)
            if self._config.sequential:
                raise ConfigError("bucket needs to know lengths in advance; remove it for text and after .filter()")
        layout = DocumentLayout(
            max_length=max_length, pad_to_multiple_of=pad_to_multiple_of, same_labels=same, bucket=bucket
        )
        return self._with(layout=layout)

    def batch(self, batch_size: int, *, last: str = "pad", dtype: str = "int64") -> Stream:
        """Collate ``batch_size`` samples of each rank; every rank gets equally many batches.

        At the end of a bounded stream, ``last="pad"`` fills missing rows with end-of-text ids and labels of -100;
        ``valid_tokens`` says how many labels count. ``last="drop"`` drops the last incomplete global batch, and logs its size.
        ``dtype="stored"`` keeps packed ids and labels in the width of the shards (uint16 or uint32), which has no -100:
        ``ignored`` (int64, 1-D) then lists the flat indices of labels to mask, and is absent where there are none. Samples
        given to a ``map`` before ``batch`` are int64, and its results are narrowed here. Raises ``ConfigError``, naming the
        key, where the samples of a batch differ in keys or shapes.

        >>> import pipeline
        >>> *_, last = pipeline.ShardDataset.from_tokens(range(20), epochs=1).pack(4).batch(3)
        >>> last["input_ids"].shape, last["valid_tokens"]
        (torch.Size([3, 4]), 7)
        """
        self._before_device("batch")
        if self._config.batch_size is not None:
            raise ConfigError("a stream is batched once; remove the second .batch()")
        check_integer("batch_size", batch_size, least=1, most=MOST_ROWS)
        layout = self._config.layout
        if layout is not None and layout.drawn_shift and not counts_items(self._config):
            raise ConfigError(
                "shift='divisors' draws one shift for a batch, and a stage given to .apply() may join samples of "
                "several; put .batch() before .apply()"
            )
        check_choice("last", last, "pad", "drop")
        check_choice("dtype", dtype, "int64", "stored")
        if dtype == "stored" and layout is not None and layout.kind == "documents":
            raise ConfigError("dtype='stored' is for packed sequences; remove it after .documents(), which gives int64")
        return self._with(batch_size=batch_size, drop_last=last == "drop", stored=dtype == "stored")

    def map(self, function: Callable[[Item], Any]) -> Stream:
        """Replace every sample (a dict), or after ``batch`` every batch, by ``function(item)``.

        >>> import pipeline
        >>> next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4).map(lambda sample: sample["labels"].sum()))).item()
        10
        """
        if not callable(function):
            raise ConfigError(f"map needs a function, got {type(function).__name__}")
        return self._with_step(Map(function), "map")

    def apply(self, stage: Callable[[Iterator[Any]], Iterator[Any]]) -> Stream:
        """Run a stage of your own: ``stage`` gets the iterator of the items before it, and returns an iterator.

        A stage that remembers is a callable object whose ``remembers`` names the attributes (plain JSON values) to keep in
        the state. Its state, and that of a stage that drops items, belongs to one rank: another world size refuses it. Every
        worker of a loader runs the stage over all items of its rank, so the order stays the same.

        Raises ``ConfigError`` while iterating, where a stage drops or adds items of a bounded stream on several ranks, which
        would take unequally many steps: use an endless stream and end it with ``take``; where it gives nothing of a whole
        epoch of an endless stream (of 8 epochs on several ranks); and where a stage that names nothing in ``remembers`` gives
        two items for one, or keeps items that it took ahead, as a buffer does: a state would lose these.

        >>> import pipeline
        >>> def even(items):
        ...     yield from (item for item in items if item["input_ids"][0] % 8 == 0)
        >>> [row["input_ids"][0].item() for row in pipeline.ShardDataset.from_tokens(range(64)).pack(4).apply(even).take(2)]
        [0, 8]
        """
        if not callable(stage):
            raise ConfigError(f"a stage must be callable with an iterator, got {type(stage).__name__}")
        return self._with_step(stage, "apply")

    def take(self, count: int) -> Stream:
        """End the stream after ``count`` batches of each rank; without ``batch`` before it, after ``count`` global sequences.

        ``set_epoch(e)`` moves to the next such pass: the steps ``e * count`` to ``(e + 1) * count`` of an endless stream or a
        mix, the first ``count`` of epoch ``e`` where ``epochs`` bounds the stream or it is sequential. A resumed stream ends
        where the first one would. After a stage of ``apply`` it counts the items that come out of it on this rank.

        >>> import pipeline
        >>> len(pipeline.ShardDataset.from_tokens(range(64)).pack(4).batch(2).take(5))
        5
        """
        check_integer("count", count, least=0, most=MOST_STEPS)
        config = self._config
        if not counts_items(config):
            return self._with_step(Take(count), "take")
        name = "take" if config.batch_size is None else "take_batches"
        before = getattr(config, name)
        return self._with(**{name: count if before is None else min(count, before)})

    @overload
    def shard(self, rank: int, world_size: int) -> Stream: ...

    @overload
    def shard(self, rank: DeviceMesh | ProcessGroup) -> Stream: ...

    def shard(self, rank: Any, world_size: int | None = None) -> Stream:
        """Set which part of the stream this process reads: a rank and a world size, a device mesh, or a process group.

        Without it, the rank is that of ``torch.distributed`` where it is initialised, else 0 of 1. Ranks that need the same
        batches, as in tensor parallelism, give the same rank. Environment variables never decide the rank; but where
        ``WORLD_SIZE`` is above 1 and there is neither a process group nor ``shard``, ``iter()`` raises ``ConfigError``, and so
        does an iteration that began before the group. ``.shard(0, 1)`` reads the whole stream in each process on purpose.

        >>> import pipeline
        >>> next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4).shard(1, 2)))["input_ids"].tolist()
        [4, 5, 6, 7]
        """
        if world_size is None:
            rank, world_size = group_topology(rank)
        check_integer("world_size", world_size, least=1, most=MOST_ROWS)
        check_integer("rank", rank, least=0)
        if rank >= world_size:
            raise ConfigError(f"rank must be below world_size, got rank {rank} of {world_size}")
        return self._with(rank=rank, world_size=world_size)

    def to(self, device: str | torch.device) -> Stream:
        """Give tensors on ``device``, ids and labels as int64; for a GPU, copied ahead of time from pinned memory.

        Packed ids are copied in their stored width and widened on the device. A batch stays valid while it is referred to.
        Only ``prefetch``, ``take`` and ``shard`` may follow. Raises ``ConfigError`` for a device that this process cannot use.

        >>> import pipeline
        >>> next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4).batch(2).to("cpu")))["input_ids"].device
        device(type='cpu')
        """
        if self._config.batch_size is None:
            raise ConfigError(".to(device) moves batches; add .batch(size) before it")
        if self._config.numpy or self._config.stored:
            raise ConfigError(".to(device) gives int64 tensors; remove .numpy() and dtype='stored' before it")
        if self._config.device is not None:
            raise ConfigError(f"a stream is moved once; remove .to({self._config.device!r}) or the second .to()")
        return self._with(device=device_given(device))

    def numpy(self) -> Stream:
        """Give NumPy arrays instead of torch tensors, of the same shapes and dtypes.

        >>> import pipeline
        >>> next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4).numpy()))["input_ids"]
        array([0, 1, 2, 3])
        """
        self._before_device("numpy")
        return self._with(numpy=True)

    def prefetch(self, count: int = 2) -> Stream:
        """Make up to ``count`` items in advance, in a thread (without this method: 2 for a GPU, else 0).

        >>> import pipeline
        >>> next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4).prefetch(8)))["input_ids"].tolist()
        [0, 1, 2, 3]
        """
        check_integer("count", count, least=0, most=MOST_ROWS)
        return self._with(prefetch=count)

    def loader(
        self, keys: str | Callable[[Any], Any] | None = None, length: int | None = None, *, repeat: bool = False
    ) -> Loader:
        """Return what a training framework takes in place of a ``DataLoader``: see `Loader`.

        ``keys``: None gives the batches as they are; ``"hf"``, for ``transformers``, gives ``input_ids``, unshifted
        ``labels`` and, where a batch has them, ``attention_mask`` and ``position_ids``; ``"torchtitan"`` gives
        ``({"input", "positions"}, labels)``, flattened; a function gives its result for each batch. ``length`` is
        ``len()`` of the loader where the stream has none (default for an endless stream: 2**31). With ``repeat=True``, each
        pass is the same, whole, from the start of the stream: for evaluation. Without it, passes follow one another.

        >>> import pipeline
        >>> loader = pipeline.ShardDataset.from_tokens(range(64), epochs=1).pack(4).batch(2).loader(keys="hf")
        >>> len(loader), sorted(next(iter(loader)))
        (8, ['input_ids', 'labels'])
        """
        if length is not None:
            check_integer("length", length, least=1, most=MOST_STEPS)
        check_flag("repeat", repeat)
        return Loader(self, keys, length, repeat)

    def __repr__(self) -> str:
        return describe(self._config, self._position.get() if self._progress is None else self._progress.position)

    def _with(self, **changes: Any) -> Stream:
        return Stream(replace(self._config, **changes))

    def _with_step(self, step: Any, method: str) -> Stream:
        self._before_device(method)
        name = "steps" if self._config.batch_size is None else "batch_steps"
        return self._with(**{name: (*getattr(self._config, name), step)})

    def _before_device(self, method: str) -> None:
        if self._config.device is not None:
            raise ConfigError(f".{method}() comes before .to(), which moves what it gives; write it before .to()")

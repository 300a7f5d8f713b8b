"""The chain of a stream: every method returns a new stage, and every stage is a torch ``IterableDataset``.

    ShardDataset(...) -> .shuffle() -> .pack() or .documents() -> .map() -> .batch() -> .map() -> .to()

A stage holds frozen ``StreamSettings`` and a position. Every ``iter()`` begins at that position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self

import torch
from torch.utils.data import IterableDataset

from ..atomic import write_json
from ..errors import ConfigError
from ..progress import Progress
from .arguments import (
    MAX_ROWS,
    MAX_STEPS,
    check_choice,
    check_flag,
    check_integer,
    check_optional,
    check_part,
    context_part,
    group_topology,
    labels_are_inputs,
    mesh_parts,
    parse_device,
    parse_shift,
)
from .document_names import document_names
from .framework_checks import check_frameworks
from .function_identity import DocumentMap, Filter, identified
from .iteration.progress import metrics_of
from .iteration.stream_position import StreamPosition
from .layout import DocumentLayout, PackLayout, SampleLayout
from .settings import Map, StreamSettings, Take

if TYPE_CHECKING:
    from os import PathLike

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from filters.rules.ruleset import RuleSet

    from ..text.tokens.tokenizer import Tokenizer
    from .frameworks import Loader
    from .mix_plan import MixPlan
    from .receipts import ReceiptDifference
    from .view import ViewPage


Item = dict[str, Any]
_DOCUMENT_METHODS = (".shuffle(", ".filter(", ".map_documents(")
_LAYOUT_METHODS = (".pack(", ".sample(", ".documents(")


class Stream(IterableDataset[Any]):
    """A stream of samples or batches: iterate it, or call a method, which returns a new stream.

    Iterating yields this rank's samples, or its batches after ``batch``, as dicts of torch tensors in CPU memory. A batch
    has the keys ``input_ids`` and ``labels`` (int64, ``[batch_size, seq_len]``; labels of -100 do not count) and
    ``valid_tokens`` (int: labels that count). Options add other keys; `docs/train.md` has a table of all. A sample has the
    same keys; its arrays lack the first dimension.

    A stream is *indexed* if its token counts are known in advance (shards, arrays). Otherwise it is *sequential*: a
    ``TextDataset``, and any stream with ``filter``, ``map_documents`` without ``same_length``, or ``pack(best_fit=True)``.
    A sequential stream reads in lanes, and a state holds the cursor of each lane. It resumes on another number of ranks if
    the global batch has as many rows as before.

    Every method raises ``ConfigError`` for a wrong value, and if it is called too early or too late in the chain.

    >>> import pipeline
    >>> batch = next(iter(pipeline.ShardDataset.from_tokens(range(64)).shuffle(seed=0).pack(8).batch(2)))
    >>> batch["input_ids"].shape, batch["labels"].dtype, batch["valid_tokens"]
    (torch.Size([2, 8]), torch.int64, 16)
    """

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._position = StreamPosition(settings)

    # Stages of documents

    def shuffle(
        self,
        *unnamed: Never,
        seed: int = 0,
        window: int | None = None,
        lanes: int | None = None,
        buffer_size: None = None,
    ) -> Stream:
        """Shuffle blocks, and documents within windows of blocks; interleave ``lanes`` parts of the epoch.

        The order depends on ``seed`` (an int from 0 on) and the epoch; ranks and workers do not change it. A block is a run
        of neighbouring documents: at most about 512 KiB of one shard, or about 32 KiB of one file of a ``TextDataset``.
        ``window`` is the number of blocks whose documents are shuffled together; in a ``TextDataset``, the sum over all lanes,
        each of which has at least one block. The defaults are windows of about 4 MiB and 64 lanes; in a mix, windows of about
        3 MiB, but of 256 MiB at most in all, and 16 lanes. There is no buffer: ``.shuffle(1000)`` and
        ``buffer_size=`` of other libraries are errors that show what to write.

        In a sequential stream, each row of a global batch (ranks x batch size) has its own lanes: 4 to 48, fewer for little
        data. ``lanes`` must then be a multiple of the rows, and the number of workers of a loader must divide the lanes of a
        row. All windows together hold 256 MiB.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64), lengths=[8] * 8, epochs=1).shuffle(seed=1).pack(8)
        >>> sorted(row["input_ids"][0].item() for row in stream)
        [0, 8, 16, 24, 32, 40, 48, 56]
        """
        self._before_layout("shuffle")
        foreign = [*map(repr, unnamed), *([] if buffer_size is None else [f"buffer_size={buffer_size!r}"])]
        if foreign:
            raise ConfigError(
                f".shuffle({', '.join(foreign)}): documents are shuffled by seed, in windows of blocks, and no buffer is "
                "filled; write .shuffle(seed=0), or .shuffle(seed=0, window=64) to shuffle 64 blocks together"
            )
        if self._settings.seed is not None:
            raise ConfigError(
                f"a stream is shuffled once; remove the second .shuffle(), or the one with seed={self._settings.seed}"
            )
        seed, window, lanes = (
            check_integer("seed", seed, 0),
            check_optional("window", window),
            check_optional("lanes", lanes),
        )
        return self._with(_call("shuffle", locals()), seed=seed, window=window, lanes=lanes)

    def filter(
        self,
        predicate: Callable[[Any], Any] | None = None,
        *,
        name: str | None = None,
        rules: RuleSet | str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
        language: str | Sequence[str] | None = None,
    ) -> Stream:
        """Keep the documents for which ``predicate`` returns true, or in a ``TextDataset`` the documents that pass rules.

        The predicate gets the 1-D array of a document's token ids; for a ``TextDataset``, a record with the attributes
        ``text``, ``id``, ``file``, ``line`` and ``source``. Its result must depend on nothing else.

        ``rules`` are names of rule sets, paths of rule files, or the result of ``pipeline.load_rules``. ``language`` lists
        the languages to keep, as in ``"en,de=0.7"``. With ``TextDataset(..., normalize=True)``, both keep the documents that
        a build keeps. ``stats()["rejected_by"]`` counts rejected documents by reason.

        The number of kept documents is unknown in advance, so the stream becomes sequential (see ``Stream``). Every rank
        takes equally many steps, even if nearly all its documents are dropped, and saves its own state (``merge_states``).

        A state loads only with the filters it was saved with. A filter is identified by its source code and the plain values
        that the code uses, or by ``name``: change the name when you change the filter. An object, a method and a function
        without source code need a name. So does a function whose code uses anything but plain values, functions and constants
        of modules.

        Raises ``ConfigError`` for a mix of texts and tokens. Iterating raises it if a whole epoch has no document to keep (on
        several ranks: if a rank's part of 8 epochs has none).

        >>> import pipeline
        >>> documents = pipeline.ShardDataset.from_tokens(range(64), lengths=[4, 60])
        >>> next(iter(documents.filter(lambda ids: len(ids) > 8).pack(4)))["input_ids"].tolist()
        [4, 5, 6, 7]
        """
        self._before_layout("filter")
        judged = rules is not None or language is not None
        if judged and (predicate is not None or name is not None):
            raise ConfigError("a filter has a function, or rules and a language; write one .filter() for each")
        if not judged and not callable(predicate):
            raise ConfigError(f"filter needs a function, got {type(predicate).__name__}")
        self._settings.sources.check_stage("filter")
        if self._settings.document_maps:
            raise ConfigError(".filter() sees documents as they are stored; write it before .map_documents()")
        if judged:
            from .sequential.text.documents import RuleFilter  # loaded for text alone

            chosen = RuleFilter(rules, language)
            self._settings.sources.check_rules(chosen.rules.fields)
            identity = Filter(chosen, chosen.name)
        else:
            assert predicate is not None
            identity = identified(predicate, name)
        return self._with(f".filter({identity.name})", filters=(*self._settings.filters, identity))

    def map_documents(
        self,
        function: Callable[[Any, Any], Any],
        *,
        name: str | None = None,
        same_length: bool = False,
        vocab_size: int | None = None,
    ) -> Stream:
        """Replace the token ids of each document before packing: for templates, fill-in-the-middle, loss masks.

        ``function(ids, mask)`` gets a document's ids (1-D, read-only) and its loss mask: None if every token counts, else
        uint8 with 0 for tokens that the loss ignores. It returns the new ids, of any length, or ``(ids, mask)`` with one
        boolean or integer for each id. Labels of masked tokens are -100. The result must depend on nothing else. Several
        functions run one after another.

        New lengths are unknown in advance, so the stream becomes sequential (see ``Stream``), unless every function is
        given with ``same_length=True``. ``vocab_size`` states how many ids the model has, if functions add ids that the
        tokenizer lacks. A state loads only with the same functions; ``filter`` says how a function is identified.

        Iterating raises ``ConfigError`` if a function returns anything else, another length under ``same_length``, or an id
        outside the vocabulary.

        >>> import pipeline
        >>> documents = pipeline.ShardDataset.from_tokens(range(8), lengths=[3, 5])
        >>> stream = documents.map_documents(lambda ids, mask: (ids[::-1], ids[::-1] > 1)).pack(4)
        >>> row = next(iter(stream))
        >>> row["input_ids"].tolist(), row["labels"].tolist()
        ([2, 1, 0, 7], [-100, -100, 7, 6])
        """
        self._before_layout("map_documents")
        if not callable(function):
            raise ConfigError(f"map_documents needs a function, got {type(function).__name__}")
        same_length = check_flag("same_length", same_length)
        vocab_size = check_optional("vocab_size", vocab_size, most=None)
        self._settings.sources.check_stage("map_documents(same_length=True)" if same_length else "map_documents")
        from .fim import FillInTheMiddle  # a plain loop does not need it

        if isinstance(function, FillInTheMiddle):
            name = name or function.name
            function.check(vocab_size or self.vocab_size)
        identity = DocumentMap(*identified(function, name, "map_documents"), same_length, vocab_size)
        call = f".map_documents({identity.name}{', same_length=True' * same_length})"
        return self._with(call, document_maps=(*self._settings.document_maps, identity))

    def without(self, documents: str | PathLike[str] | Iterable[str | int], *, reason: str) -> Self:
        """Return the same stream with documents masked: nothing is learned of them, and no other token, row or step moves.

        The tokens of these documents become end-of-text ids, whose labels are -100, as a redaction of the dataset would make
        them. Only this stream changes. So two runs, with and without, differ in these documents alone.

        ``documents`` are keys, ids, or SHARD:NUMBER as in ``"train-000000.tar:40"``: a list, or the path of a file with one a
        line. In a file of JSON Lines, such as ``rejected.jsonl``, each object gives its ``key``, else its ``id``. If several
        documents have an id, all are masked. Keys and ids are looked up in one reading of the tables of all shards.
        ``reason`` is shown by `trace` and `seen`, as ``withheld`` of the document's origin.

        Filters and ``map_documents`` see the documents as they are, and masks come after them. A state of the stream before
        ``without`` loads, so that an experiment can leave a run at any step; the log says so once. A state of this stream holds
        a hash of the list, and loads only with the same list.

        Raises ``ConfigError`` for names that no document has. A text source is read later, so its ids are not checked.

        >>> import pipeline
        >>> data = pipeline.ShardDataset.from_tokens(range(1, 9), lengths=[3, 5])
        >>> row = next(iter(data.without([0], reason="an example").pack(5)))
        >>> row["input_ids"].tolist(), row["labels"].tolist()
        ([0, 0, 0, 4, 5], [-100, -100, 4, 5, 6])
        """
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"reason must say why documents are masked, got {reason!r}")
        sources = self._settings.sources.without(document_names(documents), reason.strip())
        stream = type(self).__new__(type(self))  # a dataset stays a dataset, which can be split or mixed
        Stream.__init__(stream, replace(self._settings, sources=sources))
        return stream

    # Samples and batches

    def pack(
        self,
        seq_len: int,
        *,
        stride: int | None = None,
        shift: int | str = 1,
        boundaries: bool = False,
        labels: str = "next",
        best_fit: bool = False,
        source: bool = False,
        document_ids: bool = False,
        pad_to_multiple_of: int = 1,
    ) -> Stream:
        """Join documents, and cut the tokens into sequences of ``seq_len``, one every ``stride`` tokens (default: ``seq_len``).

        ``input_ids`` and ``labels`` are int64 ``[batch_size, seq_len]``. Labels are the tokens ``shift`` ahead; with
        ``labels="same"`` they are the inputs, for models that shift by themselves.

        ``boundaries=True`` sets a label to -100 if it is in another document than its input, or with ``labels="same"`` if it is
        the first of its document. It adds ``position_ids`` (int64 ``[batch_size, seq_len]``, from 0 in each document),
        ``cu_seqlens`` (int32: where documents begin in the flattened batch, and its size) and ``max_seqlen`` (int).

        With ``boundaries=True``, ``pad_to_multiple_of`` pads each document to a multiple of so many tokens, as
        TransformerEngine needs for context parallelism. Rows hold the same tokens plus the padding, and all rows of a batch
        are as long as its longest. ``cu_seqlens_unpadded`` is ``cu_seqlens`` without padding.

        ``best_fit=True`` packs whole documents, cuts only those longer than ``seq_len``, and pads a little. The stream
        becomes sequential (see ``Stream``). If it pads more than 5%, it warns and names the setting that pads less.

        ``shift="divisors"`` draws a divisor of ``seq_len`` below ``seq_len`` for each step, the same on all ranks (before
        ``batch``, a step is one sequence of each rank). Ids, labels and ``position_ids`` are then ``[batch_size,
        seq_len // shift, shift]``, and ``batch["shift"]`` is the drawn int. Another global batch size draws other shifts.

        ``source=True`` adds sources as indices into ``source_names``. In a mix, ``batch["source"]`` (int64 ``[batch_size]``) is
        the source of each row. If a build named its inputs, a row of its dataset can hold documents of several sources. Then add
        ``boundaries=True``: ``batch["source_ids"]`` (int64) is the source of each document that ``cu_seqlens`` delimits.

        ``document_ids=True`` adds ``document_ids`` (int64, as ``input_ids``): the number of each token's document within its row,
        from 0 in the order of `trace`; -1 for padding. Labels stay as they are.

        Raises ``ConfigError`` if ``stride`` is above ``seq_len``.

        >>> import pipeline
        >>> row = next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4)))
        >>> row["input_ids"].tolist(), row["labels"].tolist()
        ([0, 1, 2, 3], [1, 2, 3, 4])
        """
        options = self._token_options("pack", locals())
        seq_len = options["seq_len"]
        if stride is not None:
            stride = check_integer("stride", stride, least=1)
        best_fit = check_flag("best_fit", best_fit)
        if stride is not None and stride > seq_len:
            raise ConfigError(
                f"stride {stride} > seq_len {seq_len} would skip tokens; use a stride of at most {seq_len}"
            )
        stride = None if stride == seq_len else stride
        if best_fit and stride is not None:
            raise ConfigError(f"best_fit packs each document once; remove stride={stride}, or best_fit")
        if best_fit:
            self._settings.sources.check_stage("pack(best_fit=True)")
        layout = PackLayout(**options, stride=stride or seq_len, best_fit=best_fit)
        return self._with(_call("pack", locals()), layout=layout)

    def sample(
        self,
        seq_len: int,
        *,
        shift: int | str = 1,
        boundaries: bool = False,
        labels: str = "next",
        source: bool = False,
        document_ids: bool = False,
    ) -> Stream:
        """Draw sequences of ``seq_len`` tokens at random positions of the whole split, with replacement.

        A hash of the sequence index and the seed of ``shuffle`` (0 without it) says where a sequence begins; every token is
        equally likely. An epoch has about ``tokens / seq_len`` sequences. Options, keys and shapes are as in ``pack``.

        Raises ``ConfigError`` for a sequential stream, and if ``shuffle`` was given ``window`` or ``lanes``, which would have
        no effect.

        >>> import pipeline
        >>> row = next(iter(pipeline.ShardDataset.from_tokens(range(64)).shuffle(seed=1).sample(4)))
        >>> (row["labels"] - row["input_ids"]).tolist()
        [1, 1, 1, 1]
        """
        self._settings.sources.check_stage("sample")
        options = self._token_options("sample", locals())
        if self._settings.sequential:
            raise ConfigError(
                ".sample() needs to know in advance where tokens are; use .pack() for text and after .filter()"
            )
        if self._settings.window is not None or self._settings.lanes is not None:
            raise ConfigError(".sample() draws from the whole split at once; remove window= and lanes= from .shuffle()")
        return self._with(_call("sample", locals()), layout=SampleLayout(**options))

    def documents(
        self,
        max_length: int | None = None,
        *,
        pad_to_multiple_of: int = 1,
        labels: str = "next",
        bucket: int | None = None,
        source: bool = False,
        document_ids: bool = False,
    ) -> Stream:
        """Yield whole documents, one in each row, cut at ``max_length`` tokens (default: never).

        A batch has ``input_ids``, ``labels`` and ``attention_mask`` (1 for a token, 0 for padding), all int64
        ``[batch_size, length]``. ``length`` is that of the batch's longest document, rounded up to a multiple of
        ``pad_to_multiple_of``. Labels, ``source`` and ``document_ids`` are as in ``pack``; labels are -100 for padding.

        A document of 0 or 1 token is a row without a label; ``.filter`` can drop it. The mean loss over a batch of only
        such rows is NaN, so the first such batch is logged.

        ``bucket`` saves padding: it groups documents of similar length into buckets of that size, within every 64 buckets of
        the global order. Choose the batch size times the number of ranks, or a multiple. Raises ``ConfigError`` for
        ``bucket`` in a sequential stream.

        >>> import pipeline
        >>> data = pipeline.ShardDataset.from_tokens(range(5), lengths=[3, 2], eos_id=9)
        >>> next(iter(data.documents().batch(2)))["input_ids"].tolist()
        [[0, 1, 2], [3, 4, 9]]
        """
        self._before_layout("documents")
        self._settings.sources.check_stage("documents")
        max_length, bucket = check_optional("max_length", max_length), check_optional("bucket", bucket)
        pad_to_multiple_of = check_integer("pad_to_multiple_of", pad_to_multiple_of, least=1, most=MAX_ROWS)
        if bucket is not None and self._settings.sequential:
            raise ConfigError("bucket needs to know lengths in advance; remove it for text and after .filter()")
        layout = DocumentLayout(
            max_length=max_length,
            bucket=bucket,
            pad_to_multiple_of=pad_to_multiple_of,
            same_labels=labels_are_inputs(labels),
            source=self._check_source(source),
            document_ids=check_flag("document_ids", document_ids),
        )
        return self._with(_call("documents", locals()), layout=layout)

    def insert(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        at: range | Sequence[tuple[int, ...]],
        times: int | Sequence[int] = 1,
        seed: int = 0,
    ) -> Stream:
        """Put texts in place of tokens at stated rows of the run; no other token, row or step moves.

        ``texts`` are strings, which get an end-of-text id, or lists of token ids. ``times`` says how often each comes. ``at`` is

        - a range of steps: a hash of ``seed``, the text and the number of the repeat draws the row of each repeat, one text a
          row, and the token at which it begins (the first one in ``documents``, in best fit and with ``epochs``);
        - or a list of places, those of the first text first: ``(step, row)`` or ``(step, row, token)``. ``step`` counts as in
          `trace`, ``row`` in the global batch of the step, in the order of the sequences.

        The label before the text is its first token, and the label of its last token is the next token of the row. With
        ``boundaries=True`` the text is a document of its own, and so is the rest of the document that it cuts in two. In
        ``documents``, a text replaces the document of its row. `insertions` lists the places, and `trace` shows what each text
        overwrites. Functions of ``map_documents`` do not see texts. If ``epochs`` bounds a sequential stream, each pass has them.

        A state of the stream before ``insert`` loads, so that an experiment can leave a run at any step; the log says so once.
        A state of this stream holds a hash of texts and places, and another stream refuses it.

        Raises ``ConfigError`` for a text longer than a row, and for ids that the vocabulary lacks; while iterating, for a row
        that does not exist, for texts that overlap, and for more texts than rows.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64), eos_id=0).pack(6).batch(2)
        >>> batch = next(iter(stream.insert([[50, 51]], at=[(0, 1, 2)])))
        >>> batch["input_ids"][1].tolist(), batch["labels"][1].tolist()
        ([6, 7, 50, 51, 10, 11], [7, 50, 51, 10, 11, 12])
        """
        from .insertions import parse_insertion  # training without texts does not need it

        settings = self._settings
        insertion = parse_insertion(
            settings.stated_layout(), settings.sources, settings.vocab_size, texts, at, times, seed
        )
        call = f".insert({len(insertion.texts):,} texts, at={at if isinstance(at, range) else '...'})"
        return self._with(call, insertions=(*self._settings.insertions, insertion))

    def insertions(self, path: str | PathLike[str] | None = None) -> dict[str, Any]:
        """Return where the texts of `insert` are, and write this to ``path`` as JSON if it is given.

        ``texts`` are the texts as given, ``places`` has a dict for each repeat, in the order of the run: ``text`` (a number in
        ``texts``), ``step``, ``row`` in the global batch, ``begin`` and ``end`` (exclusive) in the row, and ``sequence_index``.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(6).batch(2).insert([[50, 51]], at=[(3, 1)])
        >>> stream.insertions()["places"]
        [{'text': 0, 'step': 3, 'row': 1, 'begin': 0, 'end': 2, 'sequence_index': 7}]
        """
        inserted = self._position.plan.inserted
        manifest = {"texts": [], "places": []} if inserted is None else inserted.manifest()
        if path is not None:
            write_json(Path(path), manifest)
        return manifest

    def batch(self, batch_size: int, *, cut: int | None = None, last: str = "pad", dtype: str = "int64") -> Stream:
        """Collate ``batch_size`` samples of each rank; every rank gets equally many batches.

        At the end of a bounded stream, ``last="pad"`` fills missing rows with end-of-text ids and labels of -100;
        ``valid_tokens`` says how many labels count. ``last="drop"`` drops the last incomplete global batch, and logs its
        size. With ``last="drop"``, a sequential stream with ``epochs`` on several ranks ends when the first rank lacks a
        row. It also drops the documents that other ranks have not read yet: a fifth of small data. Each rank logs what it
        knows of them.

        ``cut`` cuts each packed row into rows of so many tokens, for a sequence length that grows: the batch has
        ``batch_size * seq_len // cut`` rows. A state does not depend on ``cut``: the position counts whole rows.

        ``dtype="stored"`` keeps packed ids and labels in the dtype of the shards (uint16 or uint32). These have no -100, so
        ``ignored`` (int64, 1-D) lists the flat indices of labels to mask; the key is absent if there are none.

        Raises ``ConfigError``, naming the key, if samples of a ``map`` before ``batch`` differ in keys or shapes.

        >>> import pipeline
        >>> *_, last = pipeline.ShardDataset.from_tokens(range(20), epochs=1).pack(4).batch(3)
        >>> last["input_ids"].shape, last["valid_tokens"]
        (torch.Size([3, 4]), 7)
        """
        self._before_device("batch")
        if self._settings.batch_size is not None:
            raise ConfigError("a stream is batched once; remove the second .batch()")
        batch_size = check_integer("batch_size", batch_size, least=1, most=MAX_ROWS)
        layout = self._settings.layout
        if layout is not None and layout.drawn_shift and not self._settings.counts_items:
            raise ConfigError(
                "shift='divisors' draws one shift for a batch, and a stage given to .apply() may put samples of different "
                "shifts into one batch; put .batch() before .apply()"
            )
        cut = None if cut is None else self._check_cut(cut)
        check_choice("last", last, "pad", "drop")
        check_choice("dtype", dtype, "int64", "stored")
        if dtype == "stored" and layout is not None and layout.kind == "documents":
            raise ConfigError("dtype='stored' is for packed sequences; remove it after .documents(), which gives int64")
        if dtype == "stored" and self._settings.sample_stages:
            raise ConfigError(
                "dtype='stored' keeps ids as shards hold them, but the samples of .map() and .apply() are int64; write these "
                "after .batch(), or remove dtype='stored'"
            )
        call = _call("batch", locals())
        return self._with(call, batch_size=batch_size, cut=cut, drop_last=last == "drop", stored=dtype == "stored")

    def map(self, function: Callable[[Item], Any]) -> Stream:
        """Replace every sample (a dict), or after ``batch`` every batch, by ``function(item)``.

        >>> import pipeline
        >>> next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4).map(lambda sample: sample["labels"].sum()))).item()
        10
        """
        if not callable(function):
            raise ConfigError(f"map needs a function, got {type(function).__name__}")
        return self._with_stage(Map(function), "map", function)

    def apply(self, stage: Callable[[Iterator[Any]], Iterator[Any]]) -> Stream:
        """Run a stage of your own: ``stage`` gets the iterator of the items before it, and returns an iterator.

        A state does not include what a stage remembers: save that in your own checkpoint. A stage that takes items ahead, as
        a buffer does, loses them in a resume; `assert_resumes` detects this. After a stage that drops items, each rank saves
        its own state, which loads only under the same world size. Every worker of a loader runs the stage over all items of
        its rank, so the order stays the same.

        Raises ``ConfigError`` while iterating, if the stage

        - drops or adds items of a bounded stream on several ranks, which would then take unequally many steps: use an
          endless stream and end it with ``take``;
        - yields nothing for a whole epoch of an endless stream (for 8 epochs on several ranks);
        - yields two items for one.

        >>> import pipeline
        >>> def even(items):
        ...     yield from (item for item in items if item["input_ids"][0] % 8 == 0)
        >>> [row["input_ids"][0].item() for row in pipeline.ShardDataset.from_tokens(range(64)).pack(4).apply(even).take(2)]
        [0, 8]
        """
        if not callable(stage):
            raise ConfigError(f"a stage must be callable with an iterator, got {type(stage).__name__}")
        return self._with_stage(stage, "apply", stage)

    def take(self, count: int) -> Stream:
        """End the stream after ``count`` batches of each rank; without ``batch`` before it, after ``count`` global sequences.

        ``set_epoch(e)`` moves to pass ``e``. In an endless stream or a mix, that is the steps ``e * count`` to
        ``(e + 1) * count``; in a stream with ``epochs``, or a sequential one, the first ``count`` steps of epoch ``e``. A
        resumed stream ends where the first one would. After ``apply``, ``take`` counts this rank's items of that stage.

        >>> import pipeline
        >>> len(pipeline.ShardDataset.from_tokens(range(64)).pack(4).batch(2).take(5))
        5
        """
        count = check_integer("count", count, least=0, most=MAX_STEPS)
        settings = self._settings
        if not settings.counts_items:
            return self._with_stage(Take(count), "take", count)
        name = "take" if settings.batch_size is None else "take_batches"
        before = getattr(settings, name)
        return self._with(f".take({count})", **{name: count if before is None else min(count, before)})

    def shard(
        self,
        rank: int | DeviceMesh | ProcessGroup | None = None,
        world_size: int | None = None,
        *,
        context: tuple[int, int] | DeviceMesh | ProcessGroup | None = None,
        slices: str = "zigzag",
    ) -> Stream:
        """Set which part of the stream this process reads: a rank and a world size, a device mesh, or a process group.

        Without this method, ``torch.distributed`` states the rank if it is initialised; else it is 0 of 1. Ranks that need the
        same batches, as in tensor parallelism, pass the same rank. The ranks of a mesh or a group agree on the end of a
        sequential stream with ``epochs``, as all ranks do without this method.

        Environment variables never decide the rank. But ``iter()`` raises ``ConfigError`` if torchrun, Slurm, MPI, Horovod or JAX
        runs several processes, and there is neither a process group nor ``shard``. An iteration that began before the process
        group raises it too. To read the whole stream in each process on purpose, write ``.shard(0, 1)``.

        ``context`` is for context parallelism: a rank and a size, a mesh or a group of the peers that share each row. Each peer
        gets its slice of the ids, of the labels (shifted before they are cut) and of ``position_ids``. ``slices`` says which:

        - ``"zigzag"``: chunks ``r`` and ``2 * size - 1 - r`` of ``2 * size`` chunks;
        - ``"contiguous"``: chunk ``r`` of ``size`` chunks;
        - ``"rows"``: ``batch(cut=)`` cuts each row into several, and each peer gets ``1 / size`` of these, side by side;
        - ``"documents"``: the zigzag slice of each document, as TransformerEngine cuts packed rows (``qkv_format="thd"``); needs
          ``.pack(boundaries=True, pad_to_multiple_of=2 * size)``.

        ``.shard(mesh["dp", "cp"])`` states rank and context. With ``context`` alone, neighbouring ranks of ``torch.distributed``
        are peers. A state does not depend on ``context``. Raises ``ConfigError`` if rows cannot be cut into equal chunks.

        >>> import pipeline
        >>> rows = pipeline.ShardDataset.from_tokens(range(64)).pack(4)
        >>> next(iter(rows.shard(1, 2)))["input_ids"].tolist()
        [4, 5, 6, 7]
        >>> [next(iter(rows.shard(1, 2, context=(peer, 2))))["input_ids"].tolist() for peer in range(2)]
        [[4, 7], [5, 6]]
        """
        group, peer, given = None, None, rank
        check_choice("slices", slices, "zigzag", "contiguous", "documents", "rows")
        if world_size is None:
            given, context = mesh_parts(rank, context)
        if context is not None:
            from .context_parallel import ContextPeer  # loaded for context parallelism alone

            peer = ContextPeer(*context_part(context), slices)
        elif slices != "zigzag":
            raise ConfigError(f"slices={slices!r} says how peers share rows; add context=(rank, size), or remove it")
        if world_size is None and (given is not None or peer is None):
            given, world_size, group = group_topology(given)
        if world_size is not None:
            given, world_size = check_part("rank", given, "world_size", world_size)
        written = [] if world_size is None else [f"{given}, {world_size}"]
        written += [] if peer is None else [f"context=({peer.rank}, {peer.size})"]
        written += [] if slices == "zigzag" else [f"slices={slices!r}"]
        stated = None if world_size is None else (given, world_size)
        return self._with(f".shard({', '.join(written)})", stated_topology=stated, group=group, peer=peer)

    def to(self, device: str | torch.device) -> Stream:
        """Yield tensors on ``device``, with ids and labels as int64.

        Batches for a GPU are copied ahead of time from pinned memory. Packed ids are copied in their stored width and widened on
        the device. A batch stays valid as long as you hold it. Only ``prefetch``, ``take`` and ``shard`` may follow.

        Raises ``ConfigError`` for a device that this process cannot use and, while iterating, in a worker of a DataLoader.

        >>> import pipeline
        >>> next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4).batch(2).to("cpu")))["input_ids"].device
        device(type='cpu')
        """
        if self._settings.batch_size is None:
            raise ConfigError(".to(device) moves batches; add .batch(size) before it")
        if self._settings.numpy or self._settings.stored:
            raise ConfigError(".to(device) gives int64 tensors; remove .numpy() and dtype='stored' before it")
        if self._settings.device is not None:
            raise ConfigError(f"a stream is moved once; remove .to({self._settings.device!r}) or the second .to()")
        name = parse_device(device)
        return self._with(f".to({name!r})", device=name)

    def numpy(self) -> Stream:
        """Yield NumPy arrays instead of torch tensors, of the same shapes and dtypes.

        >>> import pipeline
        >>> next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4).numpy()))["input_ids"]
        array([0, 1, 2, 3])
        """
        self._before_device("numpy")
        return self._with(".numpy()", numpy=True)

    def prefetch(self, count: int = 2) -> Stream:
        """Make up to ``count`` items in advance, in a thread (without this method: 2 for a GPU, else 0).

        >>> import pipeline
        >>> next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4).prefetch(8)))["input_ids"].tolist()
        [0, 1, 2, 3]
        """
        count = check_integer("count", count, least=0, most=MAX_ROWS)
        return self._with(f".prefetch({count})", prefetch=count)

    def loader(
        self, keys: str | Callable[[Any], Any] | None = None, length: int | None = None, *, repeat: bool = False
    ) -> Loader:
        """Return a loader that training frameworks take in place of a ``DataLoader``: see `Loader`.

        ``keys`` chooses what a batch holds:

        - None: the batch as it is;
        - ``"hf"``, for ``transformers``: ``input_ids``, unshifted ``labels``, and if the batch has them ``attention_mask``
          and ``position_ids``;
        - ``"torchtitan"``: ``({"input", "positions"}, labels)``, flattened;
        - a function: its result for the batch.

        ``length`` is ``len()`` of the loader if the stream has none (default for an endless stream: 2**31). Each pass
        continues where the last one ended. With ``repeat=True``, for evaluation, each pass is the whole stream from its start.

        >>> import pipeline
        >>> loader = pipeline.ShardDataset.from_tokens(range(64), epochs=1).pack(4).batch(2).loader(keys="hf")
        >>> len(loader), sorted(next(iter(loader)))
        (8, ['input_ids', 'labels'])
        """
        from .frameworks import Loader  # a plain loop does not need it

        length = check_optional("length", length, most=MAX_STEPS)
        repeat = check_flag("repeat", repeat)
        return Loader(self._settings, self._position, keys, length, repeat)

    def rows(self, keys: str | Callable[[Any], Any] | None = None) -> Stream:
        """Return the rows of the whole stream, for frameworks that make batches and divide them among ranks themselves.

        Give it to the ``Trainer`` of transformers as ``train_dataset`` or ``eval_dataset``, or to Accelerate as
        ``prepare(DataLoader(stream.rows(), batch_size=n))``. Every process reads the same rows. These frameworks resume by
        skipping the rows that were read, which is exact.

        ``keys`` is as in ``loader``, except ``"torchtitan"``; a function gets a row.

        Raises ``ConfigError`` after ``batch``; while iterating, if a loader without Accelerate reads it on several ranks, and
        with ``keys="hf"`` if a collator loses the boundaries of documents or the loss masks.

        >>> import pipeline
        >>> row = next(iter(pipeline.ShardDataset.from_tokens(range(64)).pack(4).rows(keys="hf")))
        >>> row["input_ids"].tolist(), row["labels"].tolist()
        ([0, 1, 2, 3], [-100, 1, 2, 3])
        """
        if self._settings.batch_size is not None:
            raise ConfigError(
                f".rows() gives single rows to a framework that makes the batches; remove .batch({self._settings.batch_size}), "
                "and state the size there: per_device_train_batch_size of a Trainer, batch_size of a DataLoader"
            )
        if (self._settings.stated_topology or (0, 1))[1] > 1 or self._settings.peer is not None:
            call = next(call for call in reversed(self._settings.calls) if call.startswith(".shard("))
            raise ConfigError(f".rows() gives the whole stream, which the framework divides among ranks; remove {call}")
        from .frameworks import key_map  # a plain loop does not need it

        function = key_map(keys, self._settings, rows=True)
        stages = self._settings.sample_stages if keys is None else (*self._settings.sample_stages, Map(function))
        call = _call("rows", locals())
        keyed = keys if isinstance(keys, str) else "own" if keys else ""
        return self._with(call, sample_stages=stages, stated_topology=(0, 1), whole_rows=True, keyed=keyed)

    # Iteration and position

    def __iter__(self) -> Iterator[Any]:
        self._check_frameworks()
        return self._position.iterate()

    @property
    def vocab_size(self) -> int | None:
        """How many ids the tokenizer has, or the number that `map_documents` states; None for arrays and tars without one.

        >>> import pipeline
        >>> pipeline.ShardDataset.from_texts(["to be"], "bytes").vocab_size
        384
        """
        return self._settings.vocab_size

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names of the sources; ``source`` and ``source_ids`` of a batch are indices into it.

        The sources are those of a mix, or the named inputs of a build. Empty if there is only one.

        >>> import pipeline
        >>> sources = {name: pipeline.ShardDataset.from_tokens(range(64)) for name in ("wiki", "web")}
        >>> stream = pipeline.mix(sources, weights={"web": 1, "wiki": 0}).pack(4, source=True).batch(2)
        >>> [stream.source_names[number] for number in next(iter(stream))["source"]]
        ['web', 'web']
        """
        return self._settings.sources.names

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the data, with ``encode`` and ``decode``; each call reads it from the dataset's directory.

        Raises ``ConfigError`` for arrays, and for shards without a tokenizer.

        >>> import pipeline
        >>> pipeline.ShardDataset.from_texts(["to be"], "bytes").tokenizer.decode([119, 114])
        'to'
        """
        return self._settings.sources.load_tokenizer()

    def decode(self, batch: Mapping[str, Any] | torch.Tensor | Sequence[int]) -> list[str]:
        """Return the rows of a batch of this stream, or a sample, as text, by the ``tokenizer``.

        Special tokens are spelled out, so a document ends at its end-of-text token. The loss ignores text between ⟦ and ⟧.
        Padding of ``documents`` is left out. From ids alone, such as ``batch["input_ids"]`` or what a model generated, you get
        the text without these marks. An id that the tokenizer lacks is written as ``<384>``.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_texts(["to be", "or not"], "bytes").pack(10, boundaries=True).batch(1)
        >>> stream.decode(next(iter(stream)))
        ['to be</s>⟦o⟧r n']
        """
        from .decoding import decoded  # training does not need it

        return decoded(batch, self.tokenizer, self._settings.stated_layout())

    def __len__(self) -> int:
        """Return how many items this rank gets in each whole pass, at any position of the stream.

        Raises ``TypeError`` for an endless stream, or if the count is unknown in advance: after ``apply``, and for a
        sequential stream unless ``take`` alone ends it.

        >>> import pipeline
        >>> len(pipeline.ShardDataset.from_tokens(range(64), epochs=1).pack(4).batch(3))
        6
        """
        return self._position.length()

    def __bool__(self) -> bool:
        return True

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position after the items handed out by the latest iterator, as plain JSON of some hundred bytes.

        With ``batches``, the position is that after so many of this rank's batches, counted from where ``iter()`` began. A plain
        DataLoader needs this, since its workers hide their positions. The state of an indexed stream is the same on all ranks;
        the state of a sequential stream holds this rank's lanes (about 64 bytes each).

        Raises ``StateError`` without ``batches`` if the workers of a DataLoader iterate; with ``batches``, for a stream
        without ``.batch``, for a sequential stream, and after ``.apply``.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4).batch(2)
        >>> _ = next(iter(stream))
        >>> stream.state_dict()["sequence_index"], stream.state_dict(batches=3)["sequence_index"]
        (2, 6)
        """
        return self._position.save(batches)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``: ``iter()`` starts at its position until the pass is read, then at the start of the pass.

        The state of an indexed stream may come from any rank, of any number of ranks and workers. In a sequential stream,
        each rank loads the state that it saved, or all ranks load the result of ``merge_states`` for the states of all.

        Raises ``StateError``, naming the field and both values, if data, seed or settings of the order differ; and while an
        iterator of this stream is live.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4)
        >>> stream.load_state_dict(stream.state_dict() | {"sequence_index": 3})
        >>> next(iter(stream))["input_ids"].tolist()
        [12, 13, 14, 15]
        """
        self._position.load(state)

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of pass ``epoch`` (an int from 0 on): every ``iter()`` starts there.

        The content of pass ``e`` depends on the stream:

        - with ``epochs=1``: epoch ``e`` alone, cut from its first token; with ``take(n)`` too, its first ``n`` steps;
        - with ``take(n)`` alone: the steps ``e * n`` to ``(e + 1) * n`` of the endless stream, so passes neither overlap nor
          leave anything out;
        - any other stream, and every sequential one: from epoch ``e`` on;
        - a mix without ``take`` has no passes: the call changes nothing, and logs so once.

        Frameworks count their own passes from 0. So the first call after ``load_state_dict`` keeps the position, whatever
        ``epoch`` is, and later calls count from there. The pass of the loaded position ends where it would have ended. If it
        was already read to its end, the call moves to the next pass. Another call with the same number changes nothing.

        Raises ``ConfigError`` for an epoch above 0 if ``epochs`` is above 1, or if Accelerate would split the stream among
        the ranks a second time; ``StateError`` while an iterator is live.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64), epochs=1).pack(4)
        >>> stream.set_epoch(2)
        >>> stream.state_dict()["sequence_index"], len(list(stream))
        (32, 16)
        """
        self._check_frameworks()
        self._position.set_epoch(epoch)

    def skip(self, batches: int) -> None:
        """Skip so many of this rank's ``batches``, for example past data where the loss jumped; the state remembers it.

        The call counts from the position after the items handed out, and stops at the end of the pass. Every ``iter()`` then
        starts there. All ranks must pass the same number. An indexed stream skips without reading; a sequential stream, and one
        with ``apply``, reads what it skips. Raises ``StateError`` while an iterator is live, and after batches from the workers
        of a DataLoader, whose position is unknown.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4).batch(2)
        >>> stream.skip(3)
        >>> stream.state_dict()["sequence_index"], next(iter(stream))["input_ids"][0, 0].item()
        (6, 24)
        """
        self._position.skip(batches)

    def set_weights(self, weights: dict[str, float]) -> None:
        """Change the weights of a mix, from the next row of its lanes on; every ``iter()`` continues from there.

        With ``.documents(bucket=b)``, the change waits for the end of the current group of 64 * ``b`` rows.
        ``weights`` maps every source to its share. Earlier sequences stay as they were, so no source loses or repeats one. A
        state remembers the change; load it into a ``mix`` with the weights that the run began with. Raises ``ConfigError``
        for a stream that is no mix, or has a ``stopping_strategy``; ``StateError`` as `skip` does.

        >>> import pipeline
        >>> sources = {name: pipeline.ShardDataset.from_tokens(range(64)) for name in ("web", "wiki")}
        >>> stream = pipeline.mix(sources, weights={"web": 3, "wiki": 1}).pack(4)
        >>> stream.set_weights({"web": 1, "wiki": 1})
        >>> [float(source["asked"]) for source in stream.stats()["sources"].values()]
        [0.5, 0.5]
        """
        self._position.set_weights(weights)

    def plan(
        self,
        tokens: float | None = None,
        *,
        max_epochs: Mapping[str, float] | None = None,
        on_cap: str = "refuse",
    ) -> MixPlan:
        """Return what a run of ``tokens`` tokens reads of each source of a mix: rows, tokens, epochs and second passes.

        The plan counts from the start of the run, with the weights given to ``mix``. It reads no token, and ignores ``.take()``
        and stages after ``.batch()``. ``print`` shows it as a table and a chart; `docs/mix.md` lists its attributes. ``tokens``
        may be left out if a `Schedule` states them.

        ``max_epochs`` caps how often sources are read. If a cap is exceeded, ``on_cap="refuse"`` raises ``ConfigError`` with
        weights that fit. ``on_cap="renormalize"`` returns a plan with such ``weights``, which `mix` takes: the share of a capped
        source shrinks by one factor at all points, and the other sources divide the freed share in their old proportion.

        Rows of an indexed mix are exact. Rows of a sequential mix are expected values, as if nothing were filtered, mapped or
        padded. Tokens of ``.documents()`` are expected values too: a row counts as the mean document of its source.

        Raises ``ConfigError`` for texts, whose tokens are unknown, if no weights keep within the caps, and if a
        ``stopping_strategy`` ends the mix earlier.

        >>> import pipeline
        >>> sources = {name: pipeline.ShardDataset.from_tokens(range(n)) for name, n in (("web", 9000), ("wiki", 500))}
        >>> plan = pipeline.mix(sources, weights={"web": 3, "wiki": 1}).pack(4).plan(tokens=8000)
        >>> plan.sources["wiki"]["rows"], plan.sources["wiki"]["epochs"], plan.sources["wiki"]["second_pass"]
        (514, 4.112, 1940)
        """
        from .mix_plan import make_plan  # training does not need it

        return make_plan(self._position.plan, tokens, max_epochs, on_cap)

    def trace(
        self,
        step: int,
        rank: int | None = None,
        *,
        with_ids: bool = False,
        progress: Progress | None = None,
    ) -> list[dict[str, Any]]:
        """Return the documents in each row of a global step, past or future, without a log of the run.

        ``step`` counts the steps (batches of all ranks) from the start of the run, from 0 on, through all its passes. If the
        run called ``set_epoch`` or ``set_weights``, load a state of it first.

        The result has a dict for each row of ``rank`` (default: of all ranks): ``rank``, ``row``, ``sequence_index``, for a
        mix ``source``, and ``documents``. Each document has

        - ``row_begin`` and ``row_end``: its tokens in the row (the end is exclusive);
        - ``document_begin``, ``document_end`` and ``document_tokens``: their place in the stored document, and its size;
        - ``origin``: ``shard``, the number of the ``document`` in it, and what the shard records of it (``key``, ``id``,
          ``file``, kept fields). Documents of arrays have only the number;
        - ``ids`` if ``with_ids`` is set: these tokens, as they are stored.

        Labels end up to ``shift`` tokens after the row. The call reads indexes of shards and no tokens.

        A sequential stream is read from its position to the step, which takes as long as iterating it; ``progress`` shows
        how far the reading is. Steps count from the beginning of the pass, and steps before the position cannot be traced. The
        origin of a text is its ``file``, ``line`` (or ``byte``), ``id`` and fields. Tokens are counted in the document that
        `map_documents` returned.

        Raises ``ConfigError`` for live sources, after ``.apply``, and for a step after the end of the stream.

        >>> import pipeline
        >>> data = pipeline.ShardDataset.from_tokens(range(12), lengths=[5, 7])
        >>> [row] = data.pack(6).batch(1).trace(0)
        >>> [(span["row_begin"], span["row_end"], span["origin"]["document"]) for span in row["documents"]]
        [(0, 5, 0), (5, 6, 1)]
        """
        from .trace import trace_steps  # training does not need it

        step = check_integer("step", step, least=0, most=MAX_STEPS)
        position = self._position.start
        plan = self._position.plan.under(position.weights)
        rank = check_optional("rank", rank, least=0, most=plan.world_size - 1)
        ranks = range(plan.world_size) if rank is None else [rank]
        return trace_steps(plan, position, [step], ranks, with_ids=with_ids, progress=progress)[step]

    def view(
        self, steps: int | Iterable[int], path: str | PathLike[str], *, progress: Progress | None = None
    ) -> ViewPage:
        """Write the rows of some global steps, past or future, to an HTML file at ``path``; return it for a notebook.

        The page loads nothing. It shows each row's documents with origin and text, greys tokens that the loss ignores, frames
        special tokens, and searches all steps. It takes about 180 kB for a step of 32 rows of 2,048 tokens.

        Steps count as in `trace`, which also says what it raises. Rows are as packed: before ``cut``, ``pad_to_multiple_of`` and
        functions given to ``map``. Ids stand in place of text if no tokenizer is known.

        >>> import pipeline, tempfile
        >>> stream = pipeline.ShardDataset.from_texts(["to be", "or not"], "bytes").pack(8).batch(1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     stream.view(range(3), f"{folder}/batches.html").path.name
        'batches.html'
        """
        from .view import write_view  # training does not need it

        named = steps if isinstance(steps, Iterable) else [steps]
        listed = sorted({check_integer("steps", step, least=0, most=MAX_STEPS) for step in named})
        position = self._position.start
        return write_view(
            self._position.plan.under(position.weights), position, listed, Path(path), repr(self), progress
        )

    def seen(
        self, document: str | int | Sequence[str | int], *, steps: int | None = None, progress: Progress | None = None
    ) -> list[dict[str, Any]]:
        """Return where the rows of a run contain a document: the inverse of `trace`.

        ``document`` is its key or id, or SHARD:NUMBER as in ``"train-000000.tar:40"``; for arrays, its number. If several
        documents have the id, all count. A list of documents is faster than a call for each.

        ``steps`` is how many steps to search from the start of the run, counted as in `trace`. The default is all steps before
        the stream's position. A larger number also finds what the run will see.

        The result has a dict for each span, in the order of the run: ``step``, ``rank``, ``row``, ``sequence_index``, for a mix
        ``source``, and the keys of a document of `trace` (``row_begin``, ``document_begin``, ``origin`` and so on).

        For an indexed stream, the result is computed. A key of a build is looked up in the tables of a few shards; an id is
        searched in the tables of all shards. A sequential stream is read from the beginning of its pass, and steps count from
        there, as in `trace`; ``progress`` shows how far the reading is. A document of text is named by its id.

        Raises ``ConfigError`` for a document that is not in the data, for live sources, and after ``.apply``.

        >>> import pipeline
        >>> data = pipeline.ShardDataset.from_tokens(range(12), lengths=[5, 7])
        >>> stream = data.pack(6).batch(1)
        >>> [(span["step"], span["row_begin"], span["row_end"]) for span in stream.seen(1, steps=2)]
        [(0, 5, 6), (1, 0, 6)]
        """
        from .seen import seen  # training does not need it

        steps = check_optional("steps", steps, least=0, most=MAX_STEPS)
        if steps is None:
            self._position.refuse_hidden("state how many steps to search, seen(document, steps=n), or ")
        position = self._position.current
        plan = self._position.plan.under(position.weights)
        progress = progress or Progress(quiet=True)
        listed = [document] if isinstance(document, str) or not isinstance(document, Sequence) else document
        return seen(plan, position, list(map(str, listed)), steps, progress)

    def receipt(self, of: int | Mapping[str, Any], *, rows: bool = False) -> str:
        """Return the receipt of a step, or of a batch that a rank got: 16 hexadecimal digits, to say later "was it the data?".

        ``of`` is a step, counted as in `trace`, whose data is read again; or a batch of this stream, in arrays or in tensors on
        any device, before the ``keys`` of a loader. The receipt is a 64-bit hash of the ids and labels of all rows. The receipts
        of the batches of all ranks and context peers add up to that of the step, modulo 2**64, and ``merge_receipts`` adds them.
        So a step has one receipt on any ranks and workers, and under any ``cut`` (with ``boundaries=True`` and ``labels="same"``,
        under one ``cut``, whose rows decide which first labels are masked).

        ``rows=True`` adds a colon and 4 digits for each row, from which `check_receipts` names the rows that differ. Raises
        ``ConfigError`` for ``rows`` of context peers, who have parts of rows, and for streams that `trace` refuses.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4).batch(2)
        >>> [stream.receipt(batch) == stream.receipt(step) for step, batch in enumerate(stream.take(3))]
        [True, True, True]
        """
        from .receipts import read_steps, row_hashes, written  # training without receipts does not need it

        rows, settings = check_flag("rows", rows), self._settings
        if isinstance(of, Mapping):
            if rows and settings.peer is not None:
                raise ConfigError("rows=True: a context peer has only a part of each row; leave rows out")
            return written(row_hashes(of, settings), rows=rows)
        step, position = check_integer("step", of, least=0, most=MAX_STEPS), self._position.start
        [(_, hashes)] = read_steps(self._position.plan.under(position.weights), position, [step])
        return written(hashes, rows=rows)

    def check_receipts(
        self, *logs: str | PathLike[str], progress: Progress | None = None
    ) -> tuple[int, ReceiptDifference | None]:
        """Read the steps of logs again; return how many have the logged receipt, and the first step that has not (or None).

        A log has lines of JSON with ``step``, how many steps were done then, and ``receipt``. If a line has step 0, steps count
        from 0. Several logs are those of ranks, whose receipts add up. If a log repeats a step, as after a resume, its last line
        counts. A difference has ``step`` as `trace` counts, ``step_of_log``, and the ``logged`` and the ``expected`` receipt. If
        rows were logged, ``rows`` are the rows of the step, in the order of their sequences, that no logged row equals.

        Raises ``ConfigError`` for a log without receipts, and as `receipt` does.

        >>> import json, pathlib, pipeline, tempfile
        >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4).batch(2)
        >>> log = pathlib.Path(tempfile.mkdtemp(), "log.jsonl")
        >>> lines = [{"step": 1 + step, "receipt": stream.receipt(batch)} for step, batch in enumerate(stream.take(3))]
        >>> _ = log.write_text("".join(json.dumps(line) + chr(10) for line in lines))
        >>> stream.check_receipts(log)
        (3, None)
        """
        from .receipts import first_difference  # training does not need it

        position, progress = self._position.start, progress or Progress(quiet=True)
        return first_difference(self._position.plan.under(position.weights), position, logs, progress)

    def stats(self) -> dict[str, Any]:
        """Return counts, rates and the position of the latest iterator, as a dict of plain JSON; cheap enough for every step.

        - ``items`` and ``tokens`` (labels that count) handed out, ``seconds`` since it began, ``tokens_per_second``;
        - ``waited_seconds`` that the consumer waited for items, and ``waited_share``, their share of the time;
        - ``bytes_read`` from shards, and the position as ``sequence_index`` and ``epoch``;
        - for a mix, ``sources``: each source's share ``asked`` and ``served``, its ``epoch``, and the ``tokens`` of its rows that
          this process read; with a `Schedule`, also ``phases``: these shares from each point to the next;
        - for a sequential stream, ``documents`` read, ``rejected``, ``rejected_by`` reason, ``bad_records`` and
          ``damaged_files``.

        With a DataLoader, the counts are sums over its workers, at most 0.05 seconds old. Workers do not know the time waited,
        so it is missing. The numbers of sources are missing too if there are too many for the memory that workers share.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4)
        >>> _ = next(iter(stream))
        >>> stream.stats()["tokens"], stream.stats()["sequence_index"]
        (4, 1)
        """
        return self._position.stats()

    def metrics(self) -> dict[str, float]:
        """Return the numbers of ``stats`` under flat names, for ``wandb.log``, TensorBoard or MLflow.

        Each name is ``data/`` and a name of ``stats``: ``data/tokens``, ``data/waited_share``; for a mix,
        ``data/source/NAME/served`` and the like.

        >>> import pipeline
        >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4)
        >>> _ = next(iter(stream))
        >>> stream.metrics()["data/tokens"], stream.metrics()["data/epoch"]
        (4, 0)
        """
        return metrics_of(self.stats())

    def __repr__(self) -> str:
        settings = self._settings
        epochs = "endless" if settings.epochs is None else f"epochs={settings.epochs}"
        at = f"sequence_index={self._position.current.sequence_index:,}"
        seed = "not shuffled" if settings.seed is None else f"seed={settings.seed}"
        return f"{settings.sources!r}{''.join(settings.calls)}\n  {settings.sources.sizes()}; {seed}; {epochs}; {at}"

    def __getstate__(self) -> dict[str, Any]:
        self._check_frameworks()  # a spawned worker does not see what its parent iterates
        return self.__dict__

    def _check_frameworks(self) -> None:
        peers = 1 if self._settings.peer is None else self._settings.peer.size
        check_frameworks(self, self._settings, Stream, self._position.plan.world_size * peers)

    def _with(self, call: str, **changes: Any) -> Stream:
        """Return a stream at its start with these fields of its settings changed, and the text of the ``call`` added."""
        settings = replace(self._settings, calls=(*self._settings.calls, call), **changes)
        if settings.peer is not None and settings.layout is not None:
            settings.peer.check(settings.batch_layout(), settings.pieces)
        return Stream(settings)

    def _with_stage(self, step: Any, method: str, argument: Any) -> Stream:
        self._before_device(method)
        name = "sample_stages" if self._settings.batch_size is None else "batch_stages"
        written = repr(argument) if method == "take" else getattr(argument, "__qualname__", type(argument).__qualname__)
        return self._with(f".{method}({written})", **{name: (*getattr(self._settings, name), step)})

    def _token_options(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check the arguments that ``pack`` and ``sample`` share, and return them as fields of a layout."""
        self._before_layout(method)
        seq_len = check_integer("seq_len", arguments["seq_len"], least=1, most=MAX_ROWS)
        flags = {name: check_flag(name, arguments[name]) for name in ("boundaries", "document_ids")}
        for name in (name for name, is_set in flags.items() if is_set):
            self._settings.sources.check_stage(f"{method}({name}=True)")
        boundaries, same = flags["boundaries"], labels_are_inputs(arguments["labels"])
        shift, source = parse_shift(arguments["shift"], seq_len, same), self._check_source(arguments["source"])
        if source and not self._settings.sources.is_mix and not boundaries:
            raise ConfigError(
                "rows of this dataset hold documents of several sources; add boundaries=True, and source_ids holds the source "
                "of each document"
            )
        multiple = check_integer("pad_to_multiple_of", arguments.get("pad_to_multiple_of", 1), least=1, most=MAX_ROWS)
        if multiple > 1 and not (boundaries and shift):
            missing = "set shift=1" if boundaries else "add boundaries=True"
            raise ConfigError(f"pad_to_multiple_of={multiple} pads the documents within rows; {missing}, or remove it")
        options = {"seq_len": seq_len, "shift": shift, "source": source, "same_labels": same}
        return options | flags | {"pad_to_multiple_of": multiple}

    def _check_cut(self, cut: int) -> int:
        cut = check_integer("cut", cut, least=1)
        layout = self._settings.stated_layout()
        for unsuitable, what, cure in (
            (isinstance(layout, DocumentLayout), "whole documents", "use .pack(seq_len)"),
            (layout.best_fit, "rows of whole documents", "remove best_fit=True"),
            (layout.drawn_shift, "rows whose labels have a drawn shift", "set shift=1"),
            (bool(self._settings.sample_stages), "samples of .map() and .apply()", "write these after .batch()"),
            (
                layout.longest and layout.longest % cut,
                f"rows of {layout.longest} tokens",
                f"give .pack() a multiple of {cut}",
            ),
        ):
            if unsuitable:
                raise ConfigError(f"cut={cut} cannot cut {what} into rows of equal length; {cure}, or remove cut")
        return cut

    def _check_source(self, source: bool) -> bool:
        if check_flag("source", source) and not self._settings.sources.names:
            raise ConfigError(
                "source=True tells sources apart, and this stream has one: remove it, or name several in the build or in "
                "pipeline.mix"
            )
        return bool(source)

    def _before_layout(self, method: str) -> None:
        settings = self._settings
        later = [call for call in settings.calls if not call.startswith(_DOCUMENT_METHODS)]
        if settings.layout is not None:
            layout = next(call for call in later if call.startswith(_LAYOUT_METHODS))
            if method in ("pack", "sample", "documents"):
                raise ConfigError(
                    f".{method}() comes once: {layout} already says what a sample is; remove one of the two"
                )
            later = later[later.index(layout) :]
        elif not settings.sample_stages and settings.batch_size is None:
            return
        raise ConfigError(f".{method}() comes before {later[0]}; move it there, as in .{method}(...){''.join(later)}")

    def _before_device(self, method: str) -> None:
        if self._settings.device is not None:
            raise ConfigError(
                f".{method}() after .to() would change what is on the device already; write it before .to()"
            )


def _call(method: str, values: dict[str, Any]) -> str:
    """Return a method call as it would be written, from the ``values`` of its parameters, without defaults."""
    written = []
    for name, parameter in islice(signature(getattr(Stream, method)).parameters.items(), 1, None):
        if name in values and parameter.kind is not parameter.VAR_POSITIONAL and values[name] != parameter.default:
            named = f"{name}=" if parameter.kind is parameter.KEYWORD_ONLY else ""
            written.append(f"{named}{values[name]!r}")
    return f".{method}({', '.join(written)})"

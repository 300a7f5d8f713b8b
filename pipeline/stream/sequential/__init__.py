"""Readers of data whose counts are unknown in advance: raw text, ``.filter``, ``.map_documents``, best-fit packing.

lane.py               a lane: its windows in memory, and where its next sequence begins
lane_reader.py        the rows that a rank takes of each step
token_numbers.py      the documents of tokens, for traces
text/                 windows of raw text
shard_windows.py      windows of documents of shards

An example: a batch of 2 rows, 4 lanes. Every lane reads its own documents, window after window, and joins them. Row 0 comes
from lanes 0 and 2 in turn, row 1 from lanes 1 and 3::

    lane 0    | a a a b b c c | d d d d e e |          windows of shuffled documents a, b, c, ..., of unequal lengths
    lane 1    | f f f f g | g h h h i |
    lane 2    | k k l l l l m m |
    lane 3    | n o o o o o | p p q |

    step 0    row 0: lane 0, a a a b b c c d           step 1    row 0: lane 2, k k l l l l m m       step 2    row 0: lane 0
              row 1: lane 1, f f f f g g h h                     row 1: lane 3, n o o o o o p p                 row 1: lane 1

A state holds the cursor of each lane: the start of the window in which its next sequence begins, and the token there. The
window is made again from its start. After step 0, lane 0 of shards has the cursor ``[0, 0, 1, 1]``: epoch 0; cycle 0, as always
for shards; its window number 1; the token 1 there, the second d. `text.assignment` draws cycles and rounds, and which blocks of
text files a lane reads in each.

The definition
==============
A global batch has ``G`` rows, ranks x batch size (1 without ``.batch``). There are ``L`` lanes; row ``j`` of step ``k`` is
the next sequence of lane ``(k G + j) % L``, and rank ``r`` of ``R`` has rows ``r G / R`` to before ``(r + 1) G / R``. So
the rows of a step are the same for every ``R`` that divides ``G``. In a stream bounded by ``epochs``, a row whose lane has
ended comes from the next lane of its rank, in turn, that has not. The stream ends with the last lane of all ranks, or with
``last="drop"`` when a rank lacks a row: ranks agree on this at each step.

``L`` is 1 without ``.shuffle()``; ``.shuffle(lanes=)`` may state it, as a multiple of ``G``. Else it is ``m G``. ``m`` is
the least of 4, 12, 24, 48 with ``m G >= 64`` (48 if none). If there are fewer than ``m G`` records, ``m`` is lowered to the
greatest of 24, 12, 4, 2, 1 that is at most ``records // G``; fewer than ``G`` records have as many lanes. Best fit also
lowers ``m`` along these numbers, until it is 1, or each lane's epoch has at least 16 sequences and the least windows of all
lanes (below) take at most 512 MiB.

A lane reads windows. Each is made again from its start (epoch, cycle, round), and its documents are shuffled by ``key("text
window", seed, lane, epoch, cycle, round)``. The documents that filters keep are one stream, endless or of ``epochs``
epochs; a lane goes on to its next epoch if filters keep nothing of one. ``.pack`` joins the documents and cuts a sequence every
``stride`` tokens; ``best_fit`` packs each window alone (`windows.best_fit`), in an order by ``key("best fit", seed, lane, epoch,
cycle, round)``; with ``.documents``, each document is a sequence. A packed sequence without any existing label is skipped. A
bounded stream without a row is an error. So is an epoch of an endless source without a row for any lane; for best fit, and for
a process that reads a part of each epoch, 8 such epochs are. ``set_epoch(e)`` moves all lanes to the beginning of epoch ``e``,
from where ``.take`` counts.

Text
----
A block is a run of records of a file part (`text.assignment`). It ends with the record that reaches ``b = max(1, min(32 KiB, n
// (8 L)))`` bytes. A record counts as the bytes of its line in JSON Lines, as the characters of its text in other formats, and
one byte more. ``n`` is the bytes of all files; compressed files count three times. `text.assignment` says which blocks each lane
reads in which round.

If there are several lanes, a file of plain JSON Lines of more than ``p = max(1, min(256 KiB, plain // (4 L)), plain // 2**17)``
bytes (``plain``: bytes of all such files, of any size) is cut at ``size k // parts`` into ``parts = ceil(size / p)`` file
parts. A part holds the lines that begin in it. Plain text files of many documents count as JSON Lines here, unless their
separator may overlap itself.

A window is one or more rounds, and ends with its epoch at the latest. ``.shuffle(window=w)`` ends it with the
round that reaches ``max(1, w // L)`` blocks. Without ``window=``, it ends with the round that reaches ``256 MiB // L`` bytes of
blocks, or ``max(4, 4 (cycle + round))`` blocks if that is earlier. ``cycle`` and ``round`` are those of its start, so the first
windows are short. Best fit needs at least ``4 t`` bytes in each case, ``t = seq_len * max(32, min(256, 64 MiB //
(L seq_len)))``. Without ``.shuffle()`` a window is one round, or those that best fit needs: 32 sequences of 4 bytes a token.
The tokenizer ``bytes`` makes two bytes of each byte of text, so its windows hold half as much: for this tokenizer, read
128 MiB in place of 256 MiB in this paragraph, and 32 MiB in place of 64 MiB.

Each rank reads a part of a live source in one lane, which all lanes of the rank share: each row is its next sequence. Unless it
is in a mix, ``L`` is ``G``. Windows are runs of its records. If the epoch had ``n`` records before a window, the window ends with
its record number ``max(8, n)``, or earlier with the document that reaches ``c`` characters of text: ``c`` is 1 Mi, with
``.shuffle()`` 16 Mi, with ``.shuffle(window=w)`` ``w * 32`` Ki. Best fit needs at least ``4 t`` characters, with ``c // 4`` for
``64 MiB // L``. ``key("live window", seed, rank, epoch, n)`` shuffles the window's documents. Its round counts as 0.

Shards
------
The documents of an epoch in their order (section 10 of `pipeline.stream.order`), ``D`` of them, are cut into ``L`` parts:
lane ``l`` has documents ``l D // L`` to before ``(l + 1) D // L``. These ``n`` documents are cut into ``w = max(1, (2 n + s) //
(2 s))`` windows of about ``s`` documents: window ``k`` begins with document ``n k // w``. ``s`` is 64, with best fit ``max(1, t D
// T)``, where ``T`` are the tokens of an epoch, and ``256 MiB / item`` replaces 64 MiB in ``t`` (``item``: the bytes of a token).
A start is (epoch, 0, number of the window), and the documents stay in the order of the epoch.

Mixes
-----
A sequential mix has the lanes of its source of the most documents; a live source has as many documents as are asked for. Each
lane has a cursor in each source, and reads source ``n`` under the seed ``key("text source", seed, n)``. ``256 MiB / L / sources``
replaces ``256 MiB / L`` above. A block of shards is one extent, as in section 8 of `pipeline.stream.order`, which says which
source serves row ``i // L`` of lane ``i % L``. A source of fewer documents than lanes is not divided: lane ``l`` reads all of it
as a stream of one lane, under the seed ``key("text source", seed, n, l)``. Best fit counts the sequences of the largest source
and the windows of all sources, and orders the sequences by the seed of the mix.
"""

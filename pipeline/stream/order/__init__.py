"""The order of a stream: from a seed and a sequence index to documents and tokens, by exact arithmetic alone.

This page is the definition. Every program that follows it makes the same stream. Numbers are integers without a limit of size
(weights of mixes are rationals), ``//`` rounds down, ``ceil(a / b)`` is ``-(-a // b)``, ranges exclude their end, indices count
from 0.

An example: 11 documents, a to k, in blocks of one to three; windows of two blocks; 2 lanes; 2 ranks with batches of 2 rows. A
document is as long as a sequence, so that the picture stays small. This is epoch 0::

    blocks           a b | c | d e | f | g h i | j k          neighbours in the files
    permuted         g h i | c | f | a b | j k | d e          by the seed and the epoch
    windows          g h i c   | f a b   | j k d e            two blocks each
    token stream     h c i g   | b f a   | k e j d            documents shuffled within their window
    sequences        0 1 2 3     4 5 6     7 8 9 10           cut every ``stride`` tokens

    lane 0 reads sequences 0 to 5, lane 1 sequences 6 to 10; indices alternate between them:

    sequence index   0 1 2 3 4 5 6 7 8 9 10                   row, lane = divmod(index, 2)
    gives sequence   0 6 1 7 2 8 3 9 4 10 5

    step 0           indices 0 1 2 3      rank 0: 0 2 (sequences 0 1: h c)     rank 1: 1 3 (sequences 6 7: a k)
    step 1           indices 4 5 6 7      rank 0: 4 6 (sequences 2 3: i g)     rank 1: 5 7 (sequences 8 9: e j)

So a batch holds documents of far-apart windows, each lane reads its windows one after another, and the position of a stream is
one number: the sequence index.

1. Hash
-------
Arithmetic is modulo 2**64::

    mix64(x):             x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 27;  x *= 0x94D049BB133111EB;  x ^= x >> 31
    key(tag, *parts):     blake2b with a digest of 8 bytes, read as a little-endian integer, of the ASCII text
                          ``json.dumps([tag, *parts])``; parts are integers and strings
    permutation(n, salt): the list of the integers 0 to n - 1, sorted by mix64(mix64(x * 0x9E3779B97F4A7C15) ^ salt);
                          there are no ties

The JSON has ``, `` between items, strings in double quotes, characters beyond ASCII as ``\\uXXXX``, integers in decimal.
``seed`` is the integer, 0 or larger, that ``.shuffle(seed=)`` states. To compare with another implementation::

    mix64(1)                                  0x5692161D100B05E5
    key("blocks", "", 0, 0)                   11988941072446886257
    key("blocks", "\u00e9", 7, 1)                  3377085979730679143     of the text ["blocks", "\\u00e9", 7, 1]
    permutation(8, key("blocks", "", 0, 0))   6, 4, 0, 1, 7, 3, 2, 5

2. Extents and blocks
---------------------
An array of tokens that nothing divides into documents is cut into pieces of 4,096 tokens, the last of which may be shorter.
These pieces count as documents in what follows, but have no ``boundaries``.

Shards are in the order of the manifest, or of the list of files that the stream was given. `pipeline.shards.extents`
defines the table of extents: runs of consecutive documents of one shard, each of at least one document, with their sizes in
bytes, tokens and documents. A stream has ``X`` extents of ``Y`` bytes (the sum of the column ``sizes``) in all. Let
``y = max(1, Y)``. A **block** is up to ``g`` neighbouring extents of one shard::

    g = max(1, min(4, 524288 * X // y))             a stream of one source: at most 512 KiB, where extents are smaller
    g = 1                                           a source of a mix

A shard of ``m`` extents has ``b = ceil(m / g)`` blocks: its block ``k`` holds its extents ``k * m // b`` to
``(k + 1) * m // b``. A shard without extents has none. Blocks are numbered shard after shard, in each by ``k``;
there are ``K``.

A **selection** (``.split``, ``.subset``) keeps some of the extents: `pipeline.stream.datasets.parts` says which. The others
count in neither ``X``, ``Y`` nor ``m``, and each run of neighbours among the kept ones counts as a shard of its own. Documents
that are drawn of few extents are in memory one after the other, as those of an array are.

An **upsampled** source (``.upsample``) reads each document a number of times an epoch; the largest number is ``m``. Its shards
are listed ``m`` times, the whole list again and again. Listing ``k`` has only the documents whose number is above ``k``. An
extent without such a document is left out, as by a selection. The bytes of an extent stay as they are; its tokens and documents
are those that the listing has.

3. Windows
----------
``C`` is the number of lanes, ``W`` the blocks of a shuffle window. ``.shuffle(lanes=C, window=W)`` states them. If it does not
state one of them, its value is::

    C = 64     x = 4194304                               a stream of one source: 4 MiB
    C = 16     x = min(3145728, 268435456 // (C * S))    each source of a mix of S: 3 MiB, of all lanes and sources 256 MiB
    W = max(1, (2 * x * K + y) // (2 * y))               x / mean block, rounded; by each source's own K and y

Without ``.shuffle()``, ``C = 1``, and the order is the order of the files, whatever ``W`` is.

An epoch has ``M`` windows: ``M = 1`` if ``K <= C * W`` and ``Y <= 134217728``; else ``M`` is the largest integer that is at
most ``max(1, K // W)`` and coprime to ``C``, so that lanes do not change windows all at once.

Epoch ``e`` orders the blocks as ``P = permutation(K, key("blocks", name, seed, e))``; without ``.shuffle()``, ``P`` is
0 to K - 1. Window ``w`` holds the blocks ``P[w * K // M : (w + 1) * K // M]``. Its documents are listed in the order of
these blocks, in each block as in the shard. With ``d`` documents and
``p = permutation(d, key("block documents", name, seed, e, w))``, the window's ``j``-th document is the ``p[j]``-th of the
list; without ``.shuffle()``, the ``j``-th. ``name`` is the source's name in a mix, else "".

The token stream is the windows of epoch 0 in order, then those of epoch 1, and so on: ``T`` tokens and ``D`` documents an
epoch, documents of no tokens included. There is nothing between documents but the tokens that they hold.

4. Sequences and lanes
----------------------
Packing: stream sequence ``u`` has as inputs the tokens ``u * stride`` to ``u * stride + seq_len`` of the token stream, and
as labels the tokens ``u * stride + shift`` to ``u * stride + shift + seq_len``; so labels cross the borders of sequences,
documents, windows and epochs. ``shift`` is 1 where ``.pack`` does not state it. ``labels="same"``, ``boundaries=True`` and
``shift="divisors"`` change labels, not the order. ``1 <= stride <= seq_len``; ``T = 0`` is an error.

Whole documents: the same with documents for tokens, ``D`` for ``T`` and ``stride = 1``; stream sequence ``u`` is document
``u``; ``D = 0`` is an error. Its inputs are its first ``max_length`` tokens (all, if ``.documents`` does not state it). The
label of each is the next of them; the last has none. So a document of 0 or 1 token is a row without a label.

Epoch ``e`` begins at sequence index ``A(e) = ceil(e * T / stride)`` and has ``N = A(e + 1) - A(e)`` sequences, those
whose first token lies in epoch ``e`` of the token stream; ``N`` may be 0. Sequence index ``i`` is of epoch
``e = i * stride // T``, that is ``A(e) <= i < A(e + 1)``. It has a row and a lane, and is stream sequence ``u``::

    row, lane = divmod(i - A(e), C)
    u = A(e) + lane * (N // C) + min(lane, N % C) + row

5. Ranks
--------
A global step begins at any sequence index ``a`` and consists of the next ``n`` sequence indices, ``a`` to ``a + n``:
``n = R * B`` for ``R`` ranks with batches of ``B`` (1 without ``.batch``), fewer at the end of a bounded stream. The next
step begins at ``a + n``. Rank ``r`` takes of a step:

- if ``R`` divides ``C``: the ``i`` with ``(i - b) % R == r``, ascending;
- otherwise: sort the step's indices by ``(((i - b) * s) % C, i)``; rank ``r`` takes the entries ``r * n // R`` to
  ``(r + 1) * n // R`` of the sorted list, in this order. ``s`` is the smallest integer that is at least
  ``(39 * C + 50) // 100`` and coprime to ``C`` (``C = 64``: 25; 16: 7; 1: 0).

``b`` is the sequence index at which the step's pass begins (section 6), 0 in an endless stream. Rows of a batch are in the order
in which the rank takes them. The set of a step depends on ``a`` and ``R * B`` alone, never on how many ranks share it.

6. Ends
-------
A stream begins at sequence index 0. Without ``epochs`` and ``.take`` it is endless. Else it has **passes**, all of them with the
same number of sequence indices. It ends where the pass ends that it is in; ``set_epoch(e)`` moves to the beginning of pass ``e``.

With ``epochs=E``, pass ``e`` is the epochs ``e * E`` to ``(e + 1) * E`` alone, as section 4 says of a token stream that begins
with epoch ``e * E``: it is cut from its own first token, and each pass has ``S = ceil(E * T / stride)`` stream sequences. So
for epoch ``e * E + k``, ``k < E``, the ``A`` of section 4 is ``A(e * E + k) = e * S + ceil(k * T / stride)``. Tokens after the
last of a pass do not exist: they are missing in inputs and labels. Only the first ``U`` stream sequences of a pass are given,
those that have a label: ``U = max(0, ceil((E * T - d) / stride))``. ``d`` is ``shift``; 1 for ``labels="same"``; the largest
divisor for ``shift="divisors"``; 0 for samples and documents. ``U = 0`` is an error. Pass ``e`` is the sequence indices
``e * S`` to ``e * S + U``. Because lanes end at different places, one of these indices may belong to a stream sequence that is
not given, and as many given ones belong to indices from ``e * S + U`` on. These two are matched in each epoch, in ascending
order: the first index of the pass that has none takes the first such stream sequence, the second the second, and so on.

``.take(t)`` ends each pass after ``t`` sequence indices (after ``.batch``: ``t`` stands for ``t * R * B`` here), and makes no
token missing. With both, the smaller end holds. With ``.take(t)`` alone, of a mix too, pass ``e`` is the sequence indices
``e * t`` to ``(e + 1) * t`` of the endless stream.

An endless stream has no end, but ``set_epoch(e)`` moves it to ``A(e)``; an endless mix has no passes. A stream that loads a state
ends with the pass in which the state was saved. If the state was saved under another ``t``, ``R`` or ``B``, and its sequence
index is outside of that pass, the stream ends with the pass that holds this index.

If the last step has ``n < R * B`` rows, ``last="pad"`` gives each rank the rows of section 5, then rows that are filled, up to
``B``; ``last="drop"`` drops the step. Without ``.batch`` nothing is filled or dropped: a rank that section 5 gives no row
of the last step ends one row earlier. Missing inputs and the inputs of filled rows hold the end-of-text id, their labels -100.

7. Buckets
----------
``.documents(bucket=b)`` arranges the documents of a group among its sequence indices by length, so that a bucket of ``b``
neighbouring indices holds documents of similar length. Group ``h`` of epoch ``e`` is the sequence indices
``max(A(e), 64 * b * h)`` to ``min(A(e + 1), 64 * b * (h + 1))``; ``h`` counts from sequence index 0, so one ``h`` may be in
two epochs. The multiples of ``b`` cut a group into buckets, numbered from 0; its first and its last may be smaller.

The documents that section 4 gives to the group's indices are sorted by their number of tokens (before ``max_length`` cuts
them), ties by sequence index. Let ``t = permutation(buckets, key("buckets", seed, e, h))`` (0, 1, ... without
``.shuffle()``). Bucket ``t[0]`` gets the first of the sorted documents, as many as it has sequence indices, in ascending order
of both. Bucket ``t[1]`` gets the next, and so on. A group is arranged whole: ends and steps cut it afterwards.

8. Mixes
--------
A mix of shards and arrays has no epochs of its own: ``row, lane = divmod(i, C)``, and steps and ranks are those of section 5.
``epochs`` is an error. Its rows are sequences, documents or samples of its sources. Sources are in the order of their
names, sorted by code points.

A weight is an integer, a ``Fraction`` or a float, taken as ``Fraction(str(weight))``; all are divided by their sum
(``temperature=`` states the weights that `mixture.temperature_weights` gives). The first weights are a change at sequence
index 0. A change of weights at sequence index ``x`` takes effect at row ``ceil(x / C)`` of every lane. With buckets of ``b``, it
takes effect at row ``ceil(64 * b * ceil(y / (64 * b)) / C)``, where ``y`` is the first sequence index of row ``ceil(x / C)``. If
several changes take effect at one row, the last one made holds. ``set_weights`` is a change at the stream's sequence index, and
removes the changes of later rows. Each lane's rows from a change to the next are cut into periods of 4,096 rows, beginning at the
change; the next change cuts the last period short.

A ``Schedule`` states changes: the weights of its point ``k`` are a change at sequence index ``x(k)``, the sum of the sizes
``s(1)`` to ``s(k)``, rounded up. In steps, ``s(k) = (p(k) - p(k - 1)) * global_batch``, where ``p`` are the positions. Else
``s(k) = (p(k) - p(k - 1)) * N / m``: ``N`` is ``tokens`` for shares, 1 for tokens; ``m`` is ``seq_len`` for packing and samples.
For whole documents, ``m`` is the mean by the weights of point ``k - 1`` of each source's ``min(T / D, max_length)``.

With ``linear``, ``m`` is the mean of those by the weights of both points. If these weights differ, the ``n`` sequence indices
between the points have ``q = min(32, n)`` changes: number ``j`` at ``x(k - 1) + j * n // q``, with the weights that are
``(2 * j + 1) / (2 * q)`` of the way from the first to the second.

A period's quotas: let ``ideal = weight * 4096``. Each source of positive weight begins with ``max(1, ideal // 1)``.
While the sum is less than 4,096, the source of positive weight with the largest ``ideal - quota`` gets one more; while it
is more, of the sources whose quota is above 1 the one with the smallest ``ideal - quota`` gets one less; ties go to the
first by name. Sources of weight 0 have a quota of 0. More than 4,096 sources of positive weight are an error, and so is a
source of no tokens, whatever its weight.

``listed`` is a list of 4,096 sources: the first source as often as its quota says, then the second, and so on. Let
``p = permutation(4096, key("mixture", seed, lane, f))``, where ``f`` is the period's first row; without ``.shuffle()``, as
with seed 0. Row ``f + j`` comes from source ``listed[p[j]]``. Let ``k`` be the number of earlier rows of this lane, from
row 0 across all changes, that come from the same source. The row is sequence index ``k * C + lane`` of this source's own
stream: sections 2 to 4 with ``g = 1``, the mix's ``C`` and seed, the source's name and its own ``W`` (a stated window holds for
every source), ``K`` and ``T`` (of whole documents ``D``). A mix of samples has ``C = 1``, and its sources have the key
``key("sample", seed, name)`` in section 9.

Buckets of a mix are those of section 7, of its own sequence indices: group ``h`` is ``64 * b * h`` to ``64 * b * (h + 1)``, and
``e = 0``. A stopping strategy cuts groups at the multiples of its ``t``, where its passes end, before they are arranged.

``stopping_strategy="first_exhausted"`` is ``.take(t)``, ``t`` the first sequence index whose row is a sequence of epoch 1 of
its source; with ``"all_exhausted"``, ``t`` is the least with which every source of positive weight has given all of epoch 0.

9. Samples
----------
``.sample(seq_len)`` takes the documents of all shards (of a selection, the kept ones) in file order as a ring of ``T``
tokens; ``T = 0`` is an error. Sequence index ``i`` begins at its token
``mix64(mix64(i * 0x9E3779B97F4A7C15) ^ key("sample", seed)) * T >> 64`` (the product has up to 128 bits and is not reduced
modulo 2**64; without ``.shuffle()``, as with seed 0) and goes around the ring as far as it needs; its labels begin
``shift`` tokens later. ``C = 1`` in section 5, ``stride = seq_len`` in ``A(e)``, and ``epochs`` bounds the number of
sequences but makes no token missing.

10. Sequential readers
----------------------
Streams whose counts are unknown in advance (``.filter``, best-fit packing) take the documents of each epoch in the order of
section 3 with their own ``C``. If ``.shuffle`` does not state ``W``, a lane's window holds 256 MiB / ``C``:
``x = 268435456 // C``, and ``268435456 // (C * S)`` for each source of a mix of ``S``. `pipeline.stream.sequential` says how many
lanes there are, which documents each takes and which row of a batch it makes.

11. Files
---------
shuffle.py     sections 1 to 3
interleave.py  sections 4, 5 and 7
mixture.py     section 8
"""

from ...integer_hash import mix64
from .interleave import RankStep, Sequences
from .shuffle import (
    LANES,
    LANES_OF_MIX,
    Blocks,
    Epoch,
    Shuffle,
    default_window,
    derive_key,
    keyed_hashes,
    mix_window,
    permutation,
    sequential_window,
)

__all__ = [
    "LANES",
    "LANES_OF_MIX",
    "Blocks",
    "Epoch",
    "RankStep",
    "Sequences",
    "Shuffle",
    "default_window",
    "derive_key",
    "keyed_hashes",
    "mix64",
    "mix_window",
    "permutation",
    "sequential_window",
]

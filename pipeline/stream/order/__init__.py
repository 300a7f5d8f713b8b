"""The order of a stream: from a seed and a sequence index to documents and tokens, by integer arithmetic alone.

This page is the definition. Whoever follows it makes the same stream. Numbers are integers without a limit of size,
``//`` rounds down, ``ceil(a / b)`` is ``-(-a // b)``, ranges exclude their end, indices count from 0.

1. Hash
-------
Arithmetic is modulo 2**64::

    mix64(x):            x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 27;  x *= 0x94D049BB133111EB;  x ^= x >> 31
    key(tag, *parts):    blake2b with a digest of 8 bytes, read as a little-endian integer, of the ASCII text
                         ``json.dumps([tag, *parts])``; parts are integers and strings
    permutation(n, key): the integers below n, sorted by mix64(mix64(x * 0x9E3779B97F4A7C15) ^ key); there are no ties

2. Extents and blocks
---------------------
`pipeline.shards.extents` defines the table of extents: runs of consecutive documents of one shard, each of at least one
document, with their sizes in bytes, tokens and documents. A split has ``E`` extents of ``Y`` bytes (the sum of the column
``sizes``) in all. Let ``y = max(1, Y)``. A **block** is up to ``g`` neighbouring extents of one shard::

    g = max(1, min(4, 786432 * E // y))             a stream of one source
    g = 1                                           a source of a mix

A shard of ``m`` extents has ``q = ceil(m / g)`` blocks: its block ``k`` holds its extents ``k * m // q`` to
``(k + 1) * m // q``. A shard without documents has none. Blocks are numbered shard after shard, in each by ``k``;
there are ``K``.

A **selection** (``.split``) keeps some of the documents. The extents stay those of the table; ``documents`` and
``tokens`` count what is kept, and extents of which no document is kept are dropped before anything else: they count in
neither ``E``, ``Y`` nor ``m``. A selection is sparse if ``4 * kept tokens < tokens of the whole split``. The bytes of an
extent are then ``itemsize * its kept tokens``, else the table's.

3. Windows
----------
``C`` is the number of lanes, ``W`` the blocks of a shuffle window. Where ``.shuffle`` states them, they are as stated. Else::

    C = 64     W = max(8,  (2 * 4 MiB * K + y) // (2 * y))        a stream of one source: 4 MiB / mean block, rounded
    C = 16     W = max(16, (2 * 3 MiB * K + y) // (2 * y))        a mix; W of each source, by its own K and y
    C = 1      W = 1                                              without .shuffle()

Of an epoch's ``M`` windows there is one if ``K <= C * W``; else ``M`` is the largest integer that is at most ``K // W``
and coprime to ``C``, so that lanes do not change windows all at once.

Epoch ``e`` orders the blocks as ``P = permutation(K, key("blocks", name, seed, e))``; without ``.shuffle()``, ``P`` is
0 to K - 1. Window ``w`` holds the blocks ``P[w * K // M : (w + 1) * K // M]``. Its documents are listed in the order of
these blocks, in each block as in the shard (of a selection, the kept ones). With ``d`` documents and
``p = permutation(d, key("block documents", name, seed, e, w))``, the window's ``j``-th document is the ``p[j]``-th of the
list; without ``.shuffle()``, the ``j``-th. ``name`` is the source's name in a mix, else "".

The token stream is the windows of epoch 0 in order, then those of epoch 1, and so on: ``T`` tokens and ``D`` documents an
epoch, documents of no tokens included. There is nothing between documents but the tokens that they hold.

4. Sequences and lanes
----------------------
Packing: stream sequence ``n`` begins at token ``n * stride`` of the token stream and holds ``seq_len`` tokens (with
those that its labels need, which follow). ``T = 0`` and ``stride > seq_len`` are errors. Whole documents: the same with
documents for tokens, ``D`` for ``T`` and ``stride = 1``; stream sequence ``n`` is document ``n``; ``D = 0`` is an error.

Epoch ``e`` begins at sequence index ``A(e) = ceil(e * T / stride)`` and has ``N = A(e + 1) - A(e)`` sequences, those
whose first token lies in it; ``N`` may be 0. Sequence index ``i``, ``A(e) <= i < A(e + 1)``, is of lane and row::

    row, lane = divmod(i - A(e), C)
    n = A(e) + lane * (N // C) + min(lane, N % C) + row

5. Ranks
--------
A global step begins at any sequence index ``a`` and consists of the next ``n`` sequence indices, ``a`` to ``a + n``:
``n = R * B`` for ``R`` ranks with batches of ``B`` (1 without ``.batch``), fewer at the end of a bounded stream. The next
step begins at ``a + n``. Rank ``r`` takes of a step:

- where ``R`` divides ``C``: the ``i`` with ``i % R == r``, ascending;
- otherwise: the step's ``i`` sorted by ``((i * s) % C, i)``, of these places ``r * n // R`` to ``(r + 1) * n // R``, in
  this order. ``s`` is the smallest integer that is at least ``(39 * C + 50) // 100`` and coprime to ``C``
  (``C = 64``: 25; 16: 7; 1: 0).

Rows of a batch are in the order in which the rank takes them. The set of every step is thus the same for every ``R``.

6. Ends
-------
Without ``epochs`` a stream is endless. ``epochs=E`` are the sequence indices below ``A(E)``, and tokens from token
``E * T`` of the token stream on do not exist: they count as missing in inputs and labels. ``.take(n)`` are the
sequence indices below ``n``. Of a last step with ``n < R * B`` rows, ``last="pad"`` gives each rank what section 5 says,
and fills the rest of its ``B`` rows; ``last="drop"`` drops the step.

7. Buckets
----------
``.documents(bucket=b)`` rearranges the sequence indices of an epoch in groups. Group ``q`` of epoch ``e`` is
``max(A(e), 64 * b * q)`` to ``min(A(e + 1), 64 * b * (q + 1))``; the multiples of ``b`` cut it into buckets. The documents
that section 4 gives to the group's indices are sorted by their tokens, ties by index. Let ``t = permutation(buckets,
key("buckets", seed, e, q))`` (0, 1, ... without ``.shuffle()``): of the sorted documents the first go to bucket ``t[0]``,
as many as it has places, in order, the next to bucket ``t[1]``, and so on.

8. Mixes
--------
A mix has no epochs of its own: ``row, lane = divmod(i, C)``, and steps and ranks are those of section 5. Sources are in the
order of their names. Weights are rationals of sum 1; a change of weights at sequence index ``x`` takes effect at row
``ceil(x / C)`` of every lane (of several at one row the last holds). Each lane's rows from a change to the next are cut into
periods of 4,096 rows, beginning at the change; the next change cuts the last one short.

A period's quotas: let ``ideal = weight * 4096``. Each source of positive weight begins with ``max(1, floor(ideal))``.
While the sum is less than 4,096, the source of positive weight with the largest ``ideal - quota`` gets one more; while it
is more, of the sources whose quota is above 1 the one with the smallest ``ideal - quota`` gets one less; ties go to the
first by name. Sources of weight 0 have a quota of 0.

Let ``dealt`` be the source of the first name as often as its quota says, then the second, and so on, and
``p = permutation(4096, key("mixture", seed, lane, f))``, where ``f`` is the period's first row (without ``.shuffle()``,
``seed`` is 0 here). Row ``f + j`` is served by source ``dealt[p[j]]``. If the source has served ``k`` rows of this lane
before, the row is sequence index ``k * C + lane`` of this source's own stream: sections 2 to 4 with ``g = 1``, the mix's
``C``, the source's name and its own ``W``, ``K`` and ``T``.

9. Samples
----------
``.sample(seq_len)`` takes the documents of all shards in file order as a ring of ``T`` tokens. Sequence index ``i`` begins at
its token ``mix64(mix64(i * 0x9E3779B97F4A7C15) ^ key("sample", seed)) * T >> 64`` (the product is not reduced; without
``.shuffle()``, ``seed`` is 0) and goes around the ring as far as it needs. ``C = 1`` in section 5, ``stride = seq_len`` in
``A(e)``, and ``epochs`` bounds the number of sequences but cuts none.

10. Sequential readers
----------------------
Streams whose counts are not known ahead (``.filter``, best-fit packing) take the documents of each epoch in the order of
section 3 with ``C = 1``, ``W`` eight times as large where it is not stated, and deal them to lanes themselves.
"""

from .hashing import derive_key, mix64, permutation
from .interleave import Sequences, Step
from .shuffle import LANES, LANES_OF_MIX, Blocks, Epoch, Shuffle, default_window

__all__ = [
    "LANES",
    "LANES_OF_MIX",
    "Blocks",
    "Epoch",
    "Sequences",
    "Shuffle",
    "Step",
    "default_window",
    "derive_key",
    "mix64",
    "permutation",
]

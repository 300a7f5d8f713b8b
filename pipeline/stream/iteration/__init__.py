"""Iteration: what one rank and worker yields, where a stream stands, and how it moves.

stream_position.py  `StreamPosition`: where one stream stands; makes its iterators, saves, loads and moves it
bookmark.py         `Bookmark`: which pass is read next, and from where (a table of set_epoch, load_state_dict and reading)
shared_bookmark.py  `SharedBookmark`: the bookmark in memory that loaders' workers see, and what they note there
passes.py           `Passes`: which sequences a pass has, how many items they make
items.py            one iteration: reader -> collate -> the user's stages -> device
user_stages.py      `.map`, `.apply` and `.take`; what a resume would lose of their items is refused
iterator.py         `StreamIterator`: hands out items, and notes the position and the counts after each
progress.py         what an iteration counts: `stats()`
worker_counts.py    the counts of loaders' workers

From ``load_state_dict`` to the first batch::

    load_state_dict(state)      state.py makes a Position of it, and refuses what belongs to another stream
                                Passes.place says which pass that is, and whether nothing of it is left
                                Bookmark.load keeps it as the rest of that pass; the bookmark is set in shared memory
    iter(stream)                StreamPosition.iterate: Bookmark.start says where, ranks.py which rank and worker this is
      make_items                one generator over another, of (position after the item, item):
        steps                     the sequence indices of each step that this worker makes
        reader.read               -> rows of a step: by arithmetic, or from cursors of lanes
        StreamEnd.goes_on         whether the step still is one of the stream
        collate                   -> a batch; or samples, if stages come before `.batch()`
        UserStages.run            the user's stages; the samples that they leave are batched
        read_ahead, device        a thread, copies to the GPU
    next(iterator)              StreamIterator notes the position and counts, and hands the item out
    state_dict()                the position after the items that the latest iterator handed out, as JSON

A DataLoader calls ``iter`` and ``next``, in each of its workers; `Loader` (stream.loader()) calls what ``iter`` does.

- A stream has one bookmark, at which every ``iter()`` begins, in every process. Only ``load_state_dict``, ``set_epoch``,
  ``set_weights``, ``skip`` and the next pass of a `Loader` move it. After the rest of a loaded pass was read to its end, the
  pass begins whole.
- What a thread or a worker makes ahead of the consumer does not count: the position comes with each item.
- The calls that move a stream are refused while an iterator of this process is live. An iterator that was made before them and
  has not begun is an error.
- Workers of a plain ``DataLoader`` hide how far they are: ``state_dict(batches=n)`` counts from the bookmark. A
  ``StatefulDataLoader`` saves and loads the state of each worker inside it, for its next pass alone.

Which rows of a step a rank takes is said elsewhere: by `order.RankStep` for indexed readers, by `lanes` for lanes of
sequential ones. A wrong resume is found by `pipeline.assert_resumes`.
"""

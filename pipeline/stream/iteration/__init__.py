"""Iteration: the items of one rank and worker, the position of a stream, and the calls that move it.

stream_position.py  `StreamPosition`, the owner of a stream's position: makes its iterators, saves, loads and moves it. Its
                    table says how each event moves a position
pass_start.py       `PassStart`: the pass that is read next and where it starts, as a value
worker_notes.py     `WorkerNotes`: what workers of a loader tell the owner: passes begun and finished, counts
items.py            one iteration: reader -> collate -> the user's stages -> device
user_stages.py      `.map`, `.apply` and `.take`; a stage is refused if a resume would lose its items
iterator.py         `StreamIterator`: hands out items, and notes the position and the counts after each
progress.py         the counts of an iteration: `stats()`

From ``load_state_dict`` to the first batch::

    load_state_dict(state)      state.py makes a Position of the state, or refuses a state of another stream
                                Passes.pass_of finds the pass of the position, and whether the pass is read
                                PassStart.load keeps the position as the rest of that pass
    iter(stream)                StreamPosition.iterate: PassStart.position says where, ranks.py which rank and worker this is
      make_items                a chain of generators of (position after the item, item):
        steps                     the sequence indices of each step that this worker makes
        reader.read               -> rows of a step: computed, or read from the cursors of lanes
        StreamEnd.has_step        whether the stream still has this step
        collate                   -> a batch; or samples, if stages come before `.batch()`
        UserStages.run            the user's stages; the samples that they return are batched
        read_ahead, device        a thread, copies to the GPU
    next(iterator)              StreamIterator notes the position and counts, and hands the item out
    state_dict()                the position after the items that the latest iterator handed out, as JSON

A DataLoader calls ``iter`` and ``next`` in each of its workers; `Loader` (stream.loader()) calls `StreamPosition.iterate`.

- The owner in the process that calls ``iter`` has the position. Workers of a loader start at a copy of it, and learn nothing
  later.
- Items that a thread or a worker makes ahead of the consumer do not count, since each item carries its position.
- The calls that move a stream are refused while an iterator of this process is live. An iterator that was made before such a
  call and has not begun raises an error.

`order.RankStep` says which rows of a step a rank takes in an indexed stream, `lanes` says it for a sequential stream.
`pipeline.assert_resumes` finds a wrong resume.
"""

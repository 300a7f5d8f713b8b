"""Iteration: what one rank and worker yields, where a stream stands, and how that is saved.

stream_position.py  the position of one stream: makes its iterators, saves, loads and moves it
shared_position.py  that position in memory that loaders' workers share
passes.py           which pass is read next (a table of set_epoch, load_state_dict and reading), and what a pass has
state.py            a position as plain JSON; what refuses it in another stream
topology.py         rank and worker of a process; the end of a stream, which several ranks agree on
items.py            one iteration: reader -> collate -> the user's stages (what a resume would lose is refused) -> device
iterator.py         hands out items, with the position after each, and counts them

The way of a batch, in the process that iterates:

    iter(stream)  -->  StreamPosition.iterate   the position, and which rank and worker this is
                       make_items               one generator over another, of (position after the item, item):
                         steps                    the sequence indices of each step that this worker makes
                         reader.read              -> rows of a step: by arithmetic, or from cursors of lanes
                         StreamEnd.goes_on        whether the step is one of the stream still
                         collate                  -> a batch; or samples, where stages stand before `.batch()`
                         UserStages.run           `.map`, `.apply` and `.take`; the samples that they leave are batched
                         read_ahead, device       a thread, copies to the GPU
    next(...)     -->  StreamIterator           notes the position and counts; hands the item out

The shards and the order are below `reader.read` alone. A DataLoader calls ``iter`` and ``next``, in each of its workers;
`Loader` (stream.loader()) calls what ``iter`` does.

Where a stream stands:

    state_dict()   <---  current: after the items that the latest iterator handed out
                            ^
    load_state_dict()       |  each item comes with the position after it
    set_epoch()             |
    set_weights()  --->  position  --->  iter()  --->  items, in this process or in workers of a loader
    next pass

- A stream has one position, at which every ``iter()`` begins, in every process. It lies in shared memory, so that workers of a
  loader which run already see it. The calls on the left move it. Reading does so in one case: when the rest of a pass was
  read to its end, the pass begins anew.
- An iterator knows the position after each item. What a thread or a worker makes ahead of the consumer does not count.
- The calls on the left are refused while an iterator of this process is live, and an iterator that was made before them and has
  not begun is an error.
- Workers of a plain ``DataLoader`` hide how far they are: ``state_dict(batches=n)`` counts from the position. A
  ``StatefulDataLoader`` saves and loads the state of each worker inside it, for its next pass alone.
- A pass is what frameworks call an epoch; `passes` says which sequences pass ``p`` has, and its table which pass is read
  next.

Which rows of a step a rank takes is said elsewhere: by `order.RankStep` for indexed readers, by `lanes` for lanes of
sequential ones. A wrong resume is found by `pipeline.assert_resumes`.
"""

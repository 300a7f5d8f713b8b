"""Iteration: what one rank and worker yields, where a stream stands, and how that is saved.

stream_position.py  the position of one stream: makes its iterators, saves, loads and moves it
shared_position.py  that position in memory that loaders' workers share
passes.py           passes and epochs: set_epoch, len, take
state.py            a position as plain JSON; what refuses it in another stream
topology.py         rank and worker of a process, resolved where an iteration starts
items.py            one iteration: reader -> collate -> the user's stages -> device
stream_end.py       whether a step is still one of the stream, which several ranks agree on
stages.py           the user's stages: what is counted, and what a resume would lose
iterator.py         hands out items, with the position after each
worker_batch.py     batches on their way out of a loader's worker

Which rows of a step a rank takes is said elsewhere: by `order.Step` for indexed readers, by `lanes` for lanes of
sequential ones. A wrong resume is found by `pipeline.assert_resumes`.
"""

"""Iteration: what one rank and worker yields, where a stream stands, and how that is saved.

positioned_stream.py  the part of a stream that iterates, saves and loads
engine.py             one iteration: reader -> collate -> the user's stages -> device
worker_context.py     rank and worker, resolved once where an iteration starts
position.py           a position, and how loaders' workers share it
state.py              a position as plain JSON; what refuses it in another stream
epochs.py             passes and epochs: set_epoch, len, take
iterator.py           hands out items, with the position after each
worker_batch.py       batches on their way out of a loader's worker
user_stages.py        stages of the user, and those that remember
fruitless_stage.py    a stage that takes items and gives none
even_steps.py         equally many steps on every rank, or an error

Which rows of a step a rank takes is said elsewhere: by `order.Step` for indexed readers, by `sequential.layout` for lanes of
sequential ones. A wrong resume is found by `pipeline.assert_resumes`.
"""

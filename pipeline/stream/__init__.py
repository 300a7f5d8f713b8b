"""Shards or raw text -> batches: what to read in which order, and where a stream stands.

datasets.py           ShardDataset, TextDataset, mix: where a stream starts
open_dataset.py       open_dataset: whatever a user names
stream.py             the chain: each method returns a new stream. Start here
config.py             what the chain amounts to, as one value
layout.py             what a sample is: packed, sampled or a whole document; its reader and collator
shape.py              what that means over the data: lanes, and the shape that a state holds
lanes.py              the lanes of a sequential stream: how many, whose, how much each reads at a time, where each stands
data/                 the kinds of data: counts, fingerprints, extents
train_val_split.py    the two parts of .split(val=)
order/                the order as integer arithmetic; its docstring is the definition
windows/              shuffled documents in memory, and the rows that are cut out of them
indexed.py            readers of data whose counts are known in advance: any sequence, directly
sequential/           readers of data whose counts are unknown in advance: a cursor for each lane
assemble.py           a config and its data -> a reader: the one place that knows which kind of data is read how
position.py           a position, and the part of a stream that a process iterates
ranks.py              which rank a process is, and where a stream ends that several ranks must agree on
state.py              a position as plain JSON; what refuses it in another stream
batch/                rows -> batches -> the device
iteration/            where a stream stands, passes, iterators, the user's stages
frameworks.py         stream.loader() and stream.rows() for training frameworks
readers.py            who reads a stream, and what is refused
arguments.py          checks of the users' arguments
function_identity.py  a name for a function's source and values, for states
testing.py            assert_resumes
trace.py              what a step is made of
decoding.py           rows of a batch as text
"""

"""Shards or raw text -> batches, in an order that is arithmetic and resumes exactly.

datasets/             ShardDataset, TextDataset, mix, open_dataset: the start of every stream; the kinds of sources
stream.py             the chain: each method returns a new stream. Start here
settings.py           what the user asked for: the arguments of the chain, as one value
schedule.py           weights of a mix in tokens, steps or shares of a run, as changes at sequences
layout.py             the kinds of samples: packed, sampled, whole documents; their readers and collators
stream_plan.py        what the stream is: settings, data and ranks -> lanes, windows, mixture, passes, the shape of a state
lanes.py              the lanes of a sequential stream: their number, their ranks, their windows and cursors
order/                the order as integer arithmetic; its docstring is the definition
windows/              shuffled documents in memory, and the rows that are cut out of them
indexed.py            readers of data whose counts are known in advance: they compute where any sequence is
sequential/           readers of data whose counts are unknown in advance: they keep a cursor for each lane
assemble.py           a plan -> a reader: the one place that knows how each kind of data is read
position.py           a position, and the part of a stream that a process iterates
context_parallel.py   the slices of rows that a peer of context parallelism keeps
ranks.py              the rank of a process, and the agreement of ranks on the end of a stream
state.py              a position as plain JSON, which any other stream refuses
batch/                rows -> batches -> the device
iteration/            positions, passes, iterators, the user's stages
frameworks.py         stream.loader() and stream.rows() for training frameworks
framework_checks.py   refuses frameworks that would lose data or train on other labels
arguments.py          checks of the users' arguments
document_names.py     the names of documents that a user lists
function_identity.py  a name for a function's source and values, for states
fim.py                fill in the middle, for map_documents
testing.py            assert_resumes
trace.py              stream.trace(): the documents of a step
insertions.py         stream.insert(): texts in place of tokens
receipts.py           stream.receipt(): a hash of the data of a step, and the check of a log of them
seen.py               stream.seen(): the steps of a document
mix_plan.py           stream.plan(): what a run of a mix will read, and weights within caps
decoding.py           stream.decode(): rows of a batch as text
view.py               stream.view(): the rows of steps as a page
"""

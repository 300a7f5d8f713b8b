"""Readers of data whose counts are unknown in advance: raw text, ``.filter``, best-fit packing.

lanes.py             the reader of one rank and worker: its lanes, each with a cursor
cursor.py            a lane: where it stands, and what it packed but did not hand out
text_blocks.py       blocks of records of text files, dealt to lanes
shard_blocks.py      blocks of documents of shards, dealt to lanes
best_fit.py          best-fit packing of whole documents
best_fit_kernels.py  its compiled loops
"""

"""The sources of streams: each offers its counts, a fingerprint, and a way to open it.

sources.py           what a stream reads: one source, or those of a mix by their names
counted_data.py      what sources of counted documents share
shard_data.py        shards of a dataset, or arrays in memory
text_data.py         files of raw text
live_source.py       datasets that stream, and functions, read again from any place
live_data.py         a live source of raw text, as a dataset that streams
holdout.py           which extents or documents a split holds out
extent_selection.py  the extents of the shards that are streamed
"""

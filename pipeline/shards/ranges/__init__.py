"""Ranges of bytes of shards.

source.py           what windows are read from, of whatever kind of shards: start here
shard_ranges.py     ranges of many local shards, checked against the table of extents
remote_ranges.py    the same of remote shards
document_starts.py  where documents start, by their lengths
reading.py          ranges of one open file, whole or not at all
open_files.py       the files that the streams of a process keep open
memory.py           documents of an array
"""

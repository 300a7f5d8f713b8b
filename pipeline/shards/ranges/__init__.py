"""Ranges of bytes of shards.

source.py           what readers ask for documents, of whatever kind of shards: start here
shard_ranges.py     ranges of many local shards, checked against the table of extents
shard_maps.py       the same of shards that are mapped whole, without a call for each range
remote_ranges.py    the same of remote shards, many requests in flight
remote_indexes.py   slices of the indexes of remote shards
document_starts.py  where documents start, out of their lengths or the headers of members
block_store.py      what both share: folders in the cache, retries of wrong bytes
coming_bytes.py     a block that is on its way
mapped.py           memory maps, and read-ahead by the kernel
handles.py          open files and maps, closed when others need them
open_files.py       one budget of open files for all streams of a process
"""

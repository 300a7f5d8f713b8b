"""The bytes of blocks: runs of neighbouring extents, of one shard each.

block_reader.py     the interface by which windows are read from shards of any kind: start here
local_blocks.py     blocks of local shards, checked against the table of extents
remote_blocks.py    blocks of remote shards, checked likewise
memory_blocks.py    documents of an array
"""

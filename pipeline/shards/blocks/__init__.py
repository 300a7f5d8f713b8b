"""The bytes of blocks: runs of neighbouring extents, of one shard each.

block_reader.py     what windows are read from, of whatever kind of shards: start here
local_blocks.py     blocks of many local shards, checked against the table of extents
remote_blocks.py    the same of remote shards
memory_blocks.py    documents of an array
"""

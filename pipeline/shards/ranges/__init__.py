"""Ranges of bytes of shards.

source.py           what windows are read from, of whatever kind of shards: start here
shard_ranges.py     ranges of many local shards, checked against the table of extents
remote_ranges.py    the same of remote shards
memory.py           documents of an array
"""

"""Ranges of bytes of local shards.

shard_ranges.py  ranges of many shards, checked against the table of extents: start here
mapped.py        memory maps, and read-ahead by the kernel
handles.py       open files and maps, closed when others need them
open_files.py    one budget of open files for all streams of a process
"""

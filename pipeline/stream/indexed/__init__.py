"""Readers of data whose counts are known in advance: any sequence is found by arithmetic and read from its block.

core.py            what the readers of one source share
packed.py          sequences of seq_len tokens
documents.py       whole documents, with or without buckets
sampled.py         sequences from random places
mixed.py           sequences of several sources
token_stream.py    the endless shuffled token stream of one source
shuffle_window.py  the documents of one window in their order
block_pool.py      blocks that are in use or asked for ahead
coming_blocks.py   blocks of remote shards, which come behind the first rows
threads.py         the threads that load windows
lookahead.py       which windows are read next
gather.py          tokens out of blocks into rows, in compiled loops
"""

"""Readers of data whose counts are known in advance: any sequence is found by arithmetic and read from its block.

core.py            what the readers of one source share
packed.py          sequences of seq_len tokens
documents.py       whole documents, with or without buckets
sampled.py         sequences from random places
mixed.py           sequences of several sources
token_stream.py    the endless shuffled token stream of one source
mapped.py          the same, of documents that the user's functions change
windows/           windows of blocks in memory
lookahead.py       where the rows of the next steps lie
windows_ahead.py   which windows lanes come to next
"""

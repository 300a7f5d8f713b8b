"""Readers of data whose counts are known in advance: any sequence is found by arithmetic and cut out of its window.

core.py            what they share
packed.py          sequences of seq_len tokens, of one source or of several
documents.py       whole documents, with or without buckets
sampled.py         where sequences from random offsets begin
"""

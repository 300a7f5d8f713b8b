"""Readers of data whose counts are known in advance: any sequence is found by arithmetic and cut out of its window.

core.py            what the readers of one source share
packed.py          sequences of seq_len tokens
documents.py       whole documents, with or without buckets
sampled.py         sequences from random places
mixed.py           sequences of several sources
"""

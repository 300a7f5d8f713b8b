"""Recomputes shards and datasets from their bytes, without trust in the reader, the footer or the index.

findings.py       problems, and the findings on one shard
shard.py          one shard: its index, its members, its tokens
extent_checks.py  the table of extents
balance.py        the balance of a build: each document read or added is dropped, a duplicate or kept
beside_shards.py  files beside the shards: the manifest, the files that it names, leftovers of builds
task.py           one shard by path or url
processes.py      many shards, in processes if that helps
dataset.py        a dataset: hashes, counts, indexes and keys compared with the manifest and each other
"""

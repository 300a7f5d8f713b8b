"""Recomputes shards and datasets from their bytes, without trust in the reader, the footer or the index.

findings.py       problems, and what is counted while looking for them
shard.py          one shard: its index, its members, its tokens
extent_checks.py  the table of extents
balance.py        the balance of a build: documents read or added are dropped, duplicates or kept
beside_shards.py  what lies beside the shards: manifest, files, what builds left
task.py           one shard, wherever it lies
processes.py      many shards, in processes where that helps
dataset.py        a dataset: hashes, counts, indexes and keys compared with the manifest and each other
"""

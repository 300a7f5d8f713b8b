"""Everything recomputed from bytes: nothing here trusts the reader, the footer or the index.

shard.py    one shard
dataset.py  a dataset: hashes, counts, indexes and keys compared with the manifest and each other
"""

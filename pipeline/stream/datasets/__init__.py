"""The datasets that every stream begins with.

shard_dataset.py  ShardDataset: shards, and arrays of tokens in memory or in a file
text_dataset.py   TextDataset: raw text, in files or live
mix.py            mix: several datasets by shares
open_dataset.py   open_dataset: data of any kind by its name
parts.py          the parts of .split(val=) and .subset(share)
sources/          what the datasets hold: counts, fingerprints, extents
"""

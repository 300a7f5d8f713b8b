"""The shard format and the dataset directory, which building and streaming share.

format.py          the format: start here
shard_plan.py      which documents are in which split, and which shards hold them
writer.py          documents -> one atomic, reproducible, indexed tar
redacted_shard.py  a copy of a shard with documents overwritten or left out
index.py           the index of a shard, parsed and checked: the offsets and lengths of its documents
npy.py             strict reading of npy headers
token_arrays.py    files that are one array of ids, mapped
tar_members.py     a strict walk over the headers of any plain tar
foreign.py         token tars of other tools: a scan makes their index
manifest.py        manifest.json, written last
dataset_folder.py  a dataset's directory, on this machine or at a url
shard_access.py    shards by url or path: whole in a cache, and their indexes by small reads
shard_names.py     braces, globs, lists and urls -> shards, in a fixed order
shard_list.py      what a user names -> the shards of one split
other_data.py      what a path holds in place of shards, and the call that reads it, for errors
blocks/            the bytes of blocks (runs of neighbouring extents): from local files, by requests, from an array
extents/           the table of extents: runs of documents that are read in one request
verify/            shards and datasets recomputed from their bytes
"""

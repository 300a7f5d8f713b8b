"""The table of extents: runs of consecutive documents that are read in one request.

table.py      the definition: how a shard is cut, and the table in memory
checksums.py  checksums of extents: of their bytes, and of what the index says of their documents
file.py       extents.bin: the format of the file, and its codec
loading.py    the table of what a stream reads: from the file, or computed and cached
indexing.py   writes the table of a dataset that has none
check.py      compares the table with manifest, indexes and bytes
"""

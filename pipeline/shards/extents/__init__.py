"""The table of extents: runs of consecutive documents that are read in one request.

extent_table.py  the definition: how a shard is cut, and the table in memory
table_file.py    the file of a table, and the table of the shards that a stream reads
"""

"""Partitions: the documents that one unit wrote, which the stages exchange.

partition.py         columns, hashes, origins, token counts
partition_writer.py  writes the documents of a partition
checksums.py         hashes of whole input files that several units read in pieces
"""

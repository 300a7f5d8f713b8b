"""Partitions: the documents that one unit wrote, which the stages exchange.

partition.py         columns, hashes, origins
unit_records.py      the records of a unit of input: up to a limit, in partitions and batches
partition_writer.py  writes the documents of a partition
checksums.py         hashes of whole input files that several units read in pieces
"""

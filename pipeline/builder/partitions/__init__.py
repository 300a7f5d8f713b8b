"""Partitions: documents that the units of the ingest stage write, and that the later stages read.

partition.py         columns, hashes, origins
unit_records.py      the records of a unit of input: up to a limit, in partitions and batches
partition_writer.py  writes the documents of a partition
checksums.py         hashes of whole input files that several units read in pieces
"""

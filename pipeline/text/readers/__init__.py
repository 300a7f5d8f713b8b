"""Readers of input files, one format a file; each file may be read whole or by spans.

reader.py         one reader for every format
byte_stream.py    bytes in blocks and lines: decompressed by content, hashed, checked to the end
jsonl.py csv.py parquet.py tar.py    the formats
record_blocks.py  a file as fixed blocks of records, for streaming
"""

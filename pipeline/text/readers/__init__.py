"""Readers of input files, one module for each format. A file may be read whole or by spans.

document_reader.py  a file or a span of it -> records, whatever its format
format_reader.py   what the module of a format defines: `FormatReader`
byte_stream.py     the bytes of a file in blocks and lines: decompressed, hashed, checked to the end
jsonl.py json_array.py csv.py parquet.py arrow.py tar.py warc.py plain.py    the formats, each one line in formats.py
webdataset.py      tars whose members are the fields of samples
http_response.py    the response of a web server in a record of a WARC file
delimited.py        text files of many documents: lines, paragraphs, or texts between separators
"""

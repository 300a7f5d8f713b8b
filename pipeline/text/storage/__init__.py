"""Input files on this machine, web servers, object stores and the Hugging Face hub, with one interface for all.

input_file.py      an input file: its name and size, and the url and version of a remote one
local_files.py     paths, patterns and folders of this machine -> input files
listing.py         urls, patterns and folders of web servers and stores -> input files, listed once with size and version
open_input.py      an input file, local or remote -> an open file
hub.py             the Hugging Face hub: commits, listings, the bytes of files
hub_files.py       a dataset's configuration and split, or path -> files of the hub
folders.py         the files of a folder or a pattern -> those that are read
remote_file.py     a remote object as a file, read ahead in large ranges
in_memory.py       tables and iterables in memory -> files
parquet_ranges.py  columns of a remote Parquet file -> the ranges of its bytes
"""

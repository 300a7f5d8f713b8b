"""Where input files lie: this machine, web servers, object stores, the Hugging Face hub. One face for all of them.

input_file.py      an input file: its name, its size, and for a remote one its url and version
local_files.py     paths, patterns and folders of this machine -> input files
listing.py         urls, patterns and folders of web servers and stores -> input files, listed once with size and version
open_input.py      an input file -> an open file, wherever it lies
hub.py             the Hugging Face hub: commits, listings, where a file's bytes are
hub_files.py       a dataset's configuration and split, or path -> files of the hub
folders.py         which of the files that a folder or a pattern holds are read
remote_file.py     a remote object as a file, read ahead in large ranges
in_memory.py       tables and iterables in memory -> files
parquet_ranges.py  the bytes of a remote Parquet file that some of its columns take
"""

"""Windows of blocks in memory: the documents that are shuffled together.

shuffle_window.py  the documents of one window in their order
block_pool.py      makes windows out of a source's blocks
coming_blocks.py   blocks of remote shards, which come behind the first rows
gather.py          tokens out of blocks into rows, in compiled loops
loaded_windows.py  the windows of one stream in memory, and those on their way
threads.py         the threads that load windows
"""

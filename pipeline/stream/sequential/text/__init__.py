"""Raw text as a source of lanes.

deal.py     which blocks of text files each lane reads in an epoch: the definition
scans.py    the blocks, read by scans that the lanes of a process share
windows.py  windows of these blocks: read, filtered, shuffled, tokenized
live.py     windows of a live source, which is no file
"""

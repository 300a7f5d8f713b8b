"""Raw text as a source of lanes.

assignment.py    which blocks of text files each lane reads in an epoch: the definition
block_scan.py    a file as fixed blocks of records
scans.py         the blocks, read by scans that the lanes of a process share
documents.py     what becomes of their records: filtered, by rules and languages too, counted, shuffled, tokenized
text_windows.py  windows of these blocks, or of a live source, which is no file
"""

"""Raw text as a source of lanes.

assignment.py    the blocks of text files that each lane reads in an epoch: the definition
block_scan.py    a file as fixed blocks of records
scans.py         reads the blocks, by scans that the lanes of a process share
documents.py     filters, counts, shuffles and tokenizes the documents of blocks; the filter by rules and languages
text_windows.py  windows of these blocks, or of a live source
"""

"""Raw text as a source of lanes.

deal.py     which blocks of text files each lane reads in an epoch: the definition
windows.py  windows of these blocks: read, filtered, shuffled, tokenized
"""

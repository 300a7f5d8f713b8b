"""Windows: the documents of some blocks in their shuffled order, as arrays in memory.

window.py     a window, made of its blocks by one blocking job
loaded.py     the windows of a stream that are in memory or on their way
lanes.py      which windows the lanes of a stream need, now and next
rows.py       packed rows, cut out of windows
mapped.py     the same, of documents that the user's functions change
epoch.py      the documents of an epoch by their places in its order
"""

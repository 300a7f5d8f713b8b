"""Windows: the documents of some blocks in their shuffled order, as arrays in memory.

window.py         a window, which one blocking job makes from its blocks; the cache of windows
held_source.py    a small source in memory, whose documents the lanes of a sequential stream copy
row_buffer.py     the memory of packed rows: the only place that copies tokens out of windows
indexed_lanes.py  which windows the lanes of an indexed stream need, now and next
token_rows.py     packed rows, cut out of windows: of documents as they are stored, or as the user's functions change them
best_fit.py       a window's documents packed whole, best fit first
"""

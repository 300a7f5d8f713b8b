"""Windows: the documents of some blocks in their shuffled order, as arrays in memory.

window.py          a window, which one blocking job makes from its blocks; the cache of windows
held_source.py     a small source in memory, whose documents the lanes of a sequential stream copy
indexed_source.py  a source of an indexed stream: where rows begin, and the windows that lanes need, now and next
row_buffer.py      the memory of packed rows: the only place that copies tokens out of windows
token_rows.py      packed rows of an indexed source: of documents as stored, or as the user's functions change them
best_fit.py        a window's documents packed whole, best fit first
"""

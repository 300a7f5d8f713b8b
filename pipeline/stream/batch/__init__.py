"""Rows -> batches -> where they are used.

batch_keys.py  the keys of a batch: a new one is declared there, and made in collate.py
row_buffer.py  rows of a step, between a reader and a collator
collate.py     rows -> ids, labels, boundaries, padding
transport.py   tensors, read-ahead in a thread, workers of a loader, copies to a GPU
"""

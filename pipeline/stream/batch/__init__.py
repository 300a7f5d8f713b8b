"""Rows -> batches -> the consumer or its device.

batch_keys.py  the keys of a batch: a new one is declared there, and made in collate.py
rows.py        the rows of a step, which a reader returns and a collator takes
collate.py     rows -> ids, labels, boundaries, padding
transport.py   tensors, read-ahead in a thread, workers of a loader, copies to a GPU
"""

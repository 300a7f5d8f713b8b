"""Rows -> batches -> the device.

batch_types.py   the types of batches
row_buffer.py    rows of a batch, between a reader and the collator
collate.py       rows -> ids, labels, boundaries, padding
freed_memory.py  memory of batches that were dropped, kept for the next ones
label_shift.py   ``shift="divisors"``: a shift of the labels drawn for each step
device.py        tensors, read-ahead in a thread, pinned copies to a GPU
"""

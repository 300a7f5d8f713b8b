"""Training frameworks: what each takes in place of a DataLoader, and what would lose a part of the data.

framework_loader.py  stream.loader()
key_maps.py          batches under the keys that frameworks use
refusals.py          refuses a second split of the data, and batches read ahead of a state
"""

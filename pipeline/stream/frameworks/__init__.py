"""Training frameworks: what each takes in place of a DataLoader, and what would split the data twice.

framework_loader.py  stream.loader()
key_maps.py          batches under the keys that frameworks use
double_sharding.py   refuses a second split of the data by a framework
"""

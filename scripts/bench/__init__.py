"""Modules shared by the benches.

report.py    tables and medians
process.py   CPU time and memory of processes, bytes read from the disk
data.py      generated datasets, texts and tokenizers
peers.py     other loaders
child.py     reads batches in a new process
shuffle.py   how well documents are shuffled
cold.py      the part of bench_stream.py that reads from a cold disk
server.py    an http server with a latency and a bandwidth
ranks.py     which windows ranks read, computed from the order alone
remote.py    the part of bench_stream.py that reads from the network
synthetic.py  dedup alone, over made-up documents
tokens.py     whole builds of a stated number of tokens, stage by stage
"""

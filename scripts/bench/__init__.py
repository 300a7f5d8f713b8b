"""What the benches share.

report.py    tables and medians
process.py   CPU time and memory of processes, bytes read from the disk
data.py      made datasets, texts and tokenizers
peers.py     other loaders
child.py     reads batches in a process of its own
shuffle.py   how well documents are shuffled
cold.py      the part of bench_stream.py that reads from a cold disk
server.py    an http server with a latency and a bandwidth
ranks.py     which windows ranks read, counted in the order alone
remote.py    the part of bench_stream.py that reads from afar
synthetic.py  dedup alone, over made-up documents
tokens.py     whole builds of a stated number of tokens, stage by stage
"""

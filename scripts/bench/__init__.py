"""What the benches share.

report.py    tables, or one JSON object
process.py   CPU time and memory of processes, bytes read from the disk
data.py      made datasets, texts and tokenizers
server.py    an http server with a latency and a bandwidth; a hub, too
peers.py     loaders of other libraries
child.py     reads batches in a process of its own
commits.py   the library of another commit
shuffle.py   how well documents are shuffled
cold.py      the part of bench_stream.py that reads from a cold disk
remote.py    the part of bench_stream.py that reads from afar
growth.py    edited copies of a corpus, and the memory of a command
synthetic.py  dedup alone, over made-up documents
"""

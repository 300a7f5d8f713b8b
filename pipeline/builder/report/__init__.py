"""What a build counted, and how it is shown.

types.py      the shapes of counts, as JSON has them
stats.py      counters of each partition, and the counts of a build
waterfall.py  documents read, dropped by what, kept: made once, for the terminal and the page
samples.py    some texts of every outcome, chosen by hash
rejected.py   rejected.jsonl
html.py       report.html
template.py   its page
console.py    progress bars and the closing table
dry_run.py    the plan, and the outcomes of a sample, with nothing written
"""

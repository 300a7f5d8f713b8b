"""What a build counts, summed in any order. The other rooms of the builder count with these.

types.py      the shapes of counts, as JSON has them
stats.py      counters of each partition, and the counts of a build
waterfall.py  documents read, dropped by what, kept: made once, for the terminal and the page
samples.py    some texts of every outcome, chosen by hash
margins.py    texts nearest to the limits of each rule
progress.py   progress of a build on the terminal
"""

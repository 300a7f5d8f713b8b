"""What a build counts, summed in any order. The other rooms of the builder count with these.

counts.py       numbers, histograms and samples of a piece of a build, which merge by adding
histograms.py   documents by the value of each measure
samples.py      some texts of every outcome, chosen by hash
margins.py      texts nearest to the limits of each rule
build_stats.py  the counts of a whole build, as its manifest has them
funnel.py       documents read, dropped by what, kept: made once, for the terminal and the page
count_types.py  the shapes of counts, as JSON has them
progress.py     progress of a build on the terminal
"""

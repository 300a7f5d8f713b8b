"""The counts of a build, which are summed in any order. The other rooms of the builder use these classes to count.

sums.py         the numbers, histograms and samples of a part of a build, which merge by adding
samples.py      texts to show: some of every outcome, and the nearest to the limits of each rule
attribution.py  domains, dates and licences of the kept documents
build_stats.py  the counts of a whole build, as in its manifest
"""

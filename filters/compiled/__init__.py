"""Measures of many documents at once, equal to the plain definitions in `filters.measures`.

scan.py            the measures that most builds use, in one compiled pass
screens.py         others, each in a pass of its own
screen_kernels.py  the compiled loops of screens.py
"""

"""Cleaners: functions that cut parts of a text before it is measured.

cleaners.py  the cleaners of this package
"""

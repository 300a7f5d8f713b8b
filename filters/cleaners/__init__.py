"""Cleaners: functions that cut parts of a text before it is measured.

cleaners.py  lines and paragraphs, remnants of HTML
pii.py       mail addresses and public IP addresses
"""

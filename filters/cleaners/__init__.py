"""Cleaners: functions that cut parts of a text before it is measured.

cleaners.py  lines and paragraphs, remnants of HTML
pii.py       addresses of mail, and public IP addresses
"""

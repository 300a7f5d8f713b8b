"""What a build counted, and how it is shown.

stats.py     counters of each unit, and their sums
samples.py   some texts of every outcome, chosen by hash
rejected.py  rejected.jsonl
html.py      report.html, from the page in template.py
console.py   progress bars and the closing table
dry_run.py   the plan, and verdicts on a sample, with nothing written
"""

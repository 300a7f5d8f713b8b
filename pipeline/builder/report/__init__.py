"""How the counts of a build are shown.

rejected.py   rejected.jsonl
html.py       report.html
template.py   its page
console.py    the counts on the terminal
croissant.py  the dataset as Croissant
training_summary.py  the data parts of the AI Act's public summary
"""

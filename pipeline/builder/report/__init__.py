"""Shows the counts of a build.

rejected.py          rejected.jsonl, and the samples of the report
html.py              report.html
template.py          the page that html.py fills
console.py           the counts on the terminal
croissant.py         the dataset as Croissant
training_summary.py  the data parts of the AI Act's public summary
"""

"""Shows the counts of a build.

funnel.py    documents read, what each stage removed or added, documents kept
rejected.py  rejected.jsonl, and the samples of the report
html.py      report.html
template.py  the page that html.py fills
console.py   the counts on the terminal
"""

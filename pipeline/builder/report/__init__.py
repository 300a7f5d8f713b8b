"""Shows the counts of a build.

funnel.py    documents read, what each stage removed or added, documents kept
rejected.py  rejected.jsonl, and the samples of the report
html.py      report.html
page.html    the page that html.py fills: no script, nothing loaded from elsewhere, light and dark
console.py   the counts on the terminal
"""

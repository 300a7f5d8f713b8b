"""Rules: limits on measures, read from rule files.

ruleset.py       sets of rules: documents are measured by language and script, and judged
rule.py          a rule and a cleaner: a line of a rule file, its limits, and the reason for a drop
rule_files.py    rule files -> rules
fineweb2.py      FineWeb2's YAML -> entries of a rule file
resolve.py       names -> functions, and the parameters of these
user_modules.py  modules of the user, kept as source text and loaded by hash
named_files.py   files that rules name, with their hashes
"""

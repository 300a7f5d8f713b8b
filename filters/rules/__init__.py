"""Rules: limits on measures, read from rule files.

ruleset.py       which limits documents violate, and how those of one language and script are measured
rule.py          a rule and a cleaner: a line of a rule file, its limits, and the reason that it gives
rule_files.py    rule files -> rules
fineweb2.py      FineWeb2's YAML -> entries
resolve.py       names -> functions, and the parameters that they take
user_modules.py  modules of the user, kept as source text and loaded by hash
named_files.py   files that rules name, with their hashes
"""

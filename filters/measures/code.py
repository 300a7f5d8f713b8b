"""How much of a document is source code, markup or data instead of prose."""

from __future__ import annotations

import re

from filters.text_view import Page, share

LONGEST_LINE = 200
_STATEMENT = re.compile(
    r"""
      [{}();\\]\s*$ | ^\s*[{}<\])] | =>|->|::|&&|\|\||[!=]=|[+*/-]= |
      ^\s*(?: \$\s?[a-z_{] | @\w[\w.]*(?:\(.*\))?\s*$ | \#include\b | \#!/ | // | /\*  | \*/ | >>>\s ) |
      ^\s*(?: import\s[\w.,\s]+$ | from\s[\w.]+\simport\b | (?:async\s)?def\s\w+\s*\( | class\s\w+[\w(),.\s]*:\s*$ |
              (?:if|elif|while|for|with|try|except|else|finally)\b[^.?!]*:\s*$ | return\b[^.?!]*[;)\]}]?\s*$ |
              (?:public|private|protected|static|const|let|var|function|struct|enum|sub|use|my|package|typedef|void)\s
              [^.?!]*[({;=]) |
      ^\s*[\w.\[\]'"$>-]+\s*(?:=|:=|\+=)\s*\S | \w\([^()\s]*\)[\s;,.:\[)]*$ | </?\w+[^<>]*>
    """,
    re.VERBOSE,
)


def code_line_ratio(page: Page) -> float:
    """Return the share of lines that look like source code or markup, in any of the usual languages.

    Signs of code are brackets and semicolons at line ends, operators, assignments, keywords that begin a statement, calls,
    tags. A line of prose about code may count as code, and a comment as prose; over whole documents the ratio separates
    programs from prose well. Lines of more than 200 characters count as prose: `code_symbol_ratio` finds minified code.

    >>> code_line_ratio(Page("def double(x):\\n    return x * 2\\n\\nWe double it."))
    0.6666666666666666
    """
    return share(sum(len(line) <= LONGEST_LINE and is_code(line) for line in page.lines), len(page.lines))


def is_code(line: str) -> bool:
    """Return whether a line looks like source code or markup."""
    return _STATEMENT.search(line) is not None


def code_symbol_ratio(page: Page) -> float:
    r"""Return the share of visible characters that are ``{}[]()<>;=+*/\|&^~@#$%_`` or backquotes.

    >>> code_symbol_ratio(Page("a[i] = 0;"))
    0.5714285714285714
    """
    visible = "".join(page.text.split())
    return share(len(visible) - len(visible.translate(_WITHOUT_SYMBOLS)), len(visible))


_WITHOUT_SYMBOLS = str.maketrans("", "", "{}[]()<>;=+*/\\|&^~@#$%_`")

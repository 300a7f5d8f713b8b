"""``python -m pipeline COMMAND ...`` is ``shardwright COMMAND ...``."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # worker processes import this module again, under another name
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not sys.flags.safe_path and os.path.realpath(sys.path[0]) != os.path.realpath(home):
        # Python searches the current directory first: a folder named `filters` there would replace that of this package.
        del sys.path[0]

    from pipeline.cli.main import main

    sys.exit(main(program="python -m pipeline"))

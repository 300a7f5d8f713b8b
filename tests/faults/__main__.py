"""Seeds each fault and sees that a test fails: ``make test-faults``."""

import sys

from tests.faults import main

sys.exit(main())

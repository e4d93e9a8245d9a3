"""`python -m sparkfleet.lab`, which scripts/lab runs."""

import sys

from sparkfleet.lab.cli import main

sys.exit(main(sys.argv[1:]))

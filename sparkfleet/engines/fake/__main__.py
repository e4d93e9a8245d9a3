"""`python -m sparkfleet.engines.fake`."""

import sys

from sparkfleet.engines.fake.program import main

if __name__ == "__main__":
    sys.exit(main())

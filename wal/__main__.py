"""`python -m wal …` is the command `wal …`."""

import sys

from wal.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

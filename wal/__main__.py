"""`python -m wal …` is the command `wal …`."""

import sys

from wal.operate.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m memscope` is the `memscope` command."""

import sys

from .cli import main

sys.exit(main())

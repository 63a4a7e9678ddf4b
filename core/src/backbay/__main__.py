"""`python -m backbay` is the command `backbay`."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())

"""`python -m providers.local --port N`: local AWS as a program."""

import sys

from providers.local.server import main

sys.exit(main())

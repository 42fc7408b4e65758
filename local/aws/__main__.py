"""`python -m local.aws --port N`: local AWS as a program."""

import sys

from local.aws.server import main

sys.exit(main())

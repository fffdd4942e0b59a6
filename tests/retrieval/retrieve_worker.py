"""`kivqa retrieve` as a script, for runs on several ranks."""

import sys

from open_r1_kivqa.cli import main

sys.exit(main(["retrieve", *sys.argv[1:]]))

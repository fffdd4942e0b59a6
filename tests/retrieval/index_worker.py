"""`kivqa index` as a script, for runs on several ranks."""

import sys

from open_r1_kivqa.cli import main

sys.exit(main(["index", *sys.argv[1:]]))

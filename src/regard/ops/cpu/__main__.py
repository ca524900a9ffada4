"""`python -m regard.ops.cpu NAME VARIANT`: build a library in the background (see `later`)."""

import os
import subprocess
import sys
from contextlib import suppress

from regard.ops.cpu.build import FAILED, built, place

os.nice(10)  # predictions have priority; at 19 a build would not end on a busy machine
try:
    built(sys.argv[1], sys.argv[2])
except (OSError, subprocess.SubprocessError):
    with suppress(OSError):
        place(sys.argv[1], sys.argv[2])[0].with_suffix(FAILED).touch()

"""`python -m regard.ops.cpu NAME VARIANT`: build a library that nobody waits for (see `later`)."""

import os
import subprocess
import sys
from contextlib import suppress

from regard.ops.cpu.build import FAILED, built, place

os.nice(10)  # whoever asks for an answer comes first; at 19 a busy machine would never end it
try:
    built(sys.argv[1], sys.argv[2])
except (OSError, subprocess.SubprocessError):
    with suppress(OSError):
        place(sys.argv[1], sys.argv[2])[0].with_suffix(FAILED).touch()

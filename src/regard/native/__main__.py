"""`python -m regard.native NAME VARIANT`: build a library that nobody waits for (see `later`)."""

import os
import subprocess
import sys
from contextlib import suppress

from regard.native import built

os.nice(10)  # whoever asks for an answer comes first; at 19 a busy machine would never end it
with suppress(OSError, subprocess.SubprocessError):  # who needs it will be told
    built(sys.argv[1], sys.argv[2])

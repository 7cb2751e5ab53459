"""Loaded by the interpreter of every process of the chaos suite: its wall clock can be set.

Python asks this module's `time.time`; the kernel's clock, which nobody but root may set, goes on.
The file CP_RAY_CLOCKS holds one float64 per process id: seconds that its clock is ahead.
"""

import os
import struct
import time

_real = time.time
_path = os.environ.get("CP_RAY_CLOCKS")
if _path:
    _file = os.open(_path, os.O_RDONLY)

    def _set() -> float:
        (ahead,) = struct.unpack("d", os.pread(_file, 8, 8 * os.getpid()))
        return _real() + ahead

    time.time = _set

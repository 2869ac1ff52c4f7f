from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `from pretend import ...`

from pretend import register

register()  # at collection, because torch makes the threads of backward passes, one per device, at the first one

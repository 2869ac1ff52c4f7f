"""`softcue` for torchrun, with files of its own for each process, as on machines without a shared folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from softcue.cli.app import main

if __name__ == "__main__":
    rank = os.environ["RANK"]
    machine = str(1 - int(rank)) if os.environ.get("SWAPS_MACHINES") else rank
    place = sys.argv.index("--output-dir") + 1
    Path(f"{sys.argv[place]}-{rank}.pid").write_text(str(os.getpid()))
    sys.argv[place] += f"-{machine}"
    for number, word in enumerate(sys.argv):
        own = Path(word).with_name(f"process-{rank}-{Path(word).name}") if Path(word).name else Path(word)
        if own.is_file():
            sys.argv[number] = str(own)
    main()

#!/usr/bin/env python3
"""Stands in for Coral's closed compiler: prints what it is told to, as the real one does.

STAND_IN is a folder. The first run does what the file `1` in it says, the second `2`, and so on;
the last one is repeated. `exit N`, `signal N` and `sleep N` are orders; everything else is printed.
"""

import os
import sys
import time
from pathlib import Path

folder = Path(os.environ["STAND_IN"])
runs = len(list(folder.glob("ran.*"))) + 1
(folder / f"ran.{runs}").write_text(" ".join(sys.argv[1:]))
chosen = max((p for p in folder.glob("[0-9]") if int(p.name) <= runs), key=lambda p: int(p.name))
out, model = Path(sys.argv[sys.argv.index("--out_dir") + 1]), Path(sys.argv[-1])
text = chosen.read_text()
for line in text.splitlines():
    order, _, number = line.partition(" ")
    if order == "sleep":
        time.sleep(float(number))
    elif order == "signal":
        sys.stdout.flush()
        os.kill(os.getpid(), int(number))
    elif order == "exit":
        sys.stdout.flush()
        os._exit(int(number))
    else:
        print(line)
if "compiled" in text:
    (out / f"{model.stem}_edgetpu.tflite").write_bytes(b"\0\0\0\0TFL3" + model.read_bytes()[:8])
    if "Operator " in text:
        start = text.index("Operator ")
        (out / f"{model.stem}_edgetpu.log").write_text("Edge TPU Compiler\n" + text[start:])

"""Side-by-side benchmarks; each module is one table of bench/README.md."""

import os

# What is timed is a first build.
os.environ["PACKAGER_CACHE"] = ""

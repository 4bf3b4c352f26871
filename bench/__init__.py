"""Side-by-side benchmarks; each module is one table of bench/README.md."""

"""Reports: one self-contained HTML page about a run or a benchmark, made from files alone."""

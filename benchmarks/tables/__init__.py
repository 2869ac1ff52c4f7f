"""Scripts that write docs/benchmarks.md, and the one that measures LM adaptation.

python -m benchmarks.tables.write_benchmarks train
"""

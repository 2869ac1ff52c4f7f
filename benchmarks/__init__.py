"""Measurements of softcue: speed and memory here, scores in `tables/`. Not part of the installed package.

    python -m benchmarks train|predict|models|few-shot|growth|serve [--json]

Speed and memory are ratios with peers, measured interleaved in one process. No test asserts a speed.
"""

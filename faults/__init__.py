"""Faults made on purpose, in large numbers, and what softcue makes of them.

`python -m faults NAME` runs one check of `faults/plan.py` and adds its figures to a JSON file. `make faults` runs the
long versions of all and writes docs/reliability.md from those files. The short versions are tests (tests/faults).
"""

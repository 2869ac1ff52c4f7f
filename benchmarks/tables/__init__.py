"""Scripts that make the tables of docs/results.md, and those that write docs/benchmarks.md. Each prints Markdown.

python -m benchmarks.tables.results --data data
"""

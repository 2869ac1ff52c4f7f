"""The engine: batches of rows of any cue, run by one thread."""

"""From a task's rows to batches of token ids."""

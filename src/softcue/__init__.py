"""softcue teaches a frozen language model new tasks with small learned prompts that read the input."""
__version__ = "0.1.0"

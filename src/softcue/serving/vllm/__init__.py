"""vLLM as the program that runs a decoder: its HTTP protocol, the process, and which cues it can serve."""

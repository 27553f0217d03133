"""The net of golden outputs: commands and Python calls with fixed seeds, and what each gave when it was recorded."""

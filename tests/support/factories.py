"""A file of factories, good and bad ones."""

CODE = """
from torch import nn

def network():
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))

class Own(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.layer = nn.Linear(2, width)

ready = nn.Linear(2, 1)
number = 7
def needs(width, *, depth): return nn.Linear(width, depth)
def raises(): raise KeyError("no GPU")
def wrong(): return [1, 2]
def stops(): raise SystemExit(0)
def interrupted(): raise KeyboardInterrupt
"""

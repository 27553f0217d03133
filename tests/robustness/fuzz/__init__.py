"""Mutated inputs against the commands of Equipoise: `python -m fuzz`, or `make fuzz`.

Every input has a family and a number, and is the same for the same seed: `python -m fuzz --only tables:17` runs that one alone. A family
(one file in `families/`) writes a mutated copy of small, sound inputs and names the command to run; its oracle knows the right answers.
"""

"""The data sets of the catalogue: one file each, which reads or simulates it and holds its recipe."""

"""The families of mutated inputs, and the share of each."""

from fuzz.families import bundles, dicom, images, options, saved, tables, toml, weights

FAMILIES = {
    "tables": tables.case,
    "options": options.case,
    "images": images.case,
    "dicom": dicom.case,
    "weights": weights.case,
    "toml": toml.case,
    "bundles": bundles.case,
    "saved": saved.case,
}
SHARES = {"tables": 35, "options": 14, "images": 12, "dicom": 8, "weights": 10, "toml": 6, "bundles": 15, "saved": 15}

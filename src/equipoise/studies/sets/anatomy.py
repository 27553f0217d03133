"""Paints simulated chest X-rays: the attenuation of all structures is summed and passed through a film curve.

The patient's right is on the left of the image. Coordinates run from -1 to 1, x to the right and y down; lengths are in half image widths.
Vertical edges are functions of y and horizontal ones functions of x, so that nearly everything is an outer sum of a row and a column. A
rotation shifts the former sideways by angle * y and the latter down by angle * x, which is exact to first order.
"""

from functools import lru_cache
from math import pi

import numpy as np
import torch
from torch import Tensor

# Mean and standard deviation over patients; SHIFT_IN_WOMEN holds the differences of the means in women.
TRAITS = {
    "thorax": (0.69, 0.025),  # half width of the rib cage
    "apex": (-0.76, 0.025),
    "dome": (0.36, 0.04),  # height of the right diaphragm
    "lower": (0.04, 0.015),  # how much lower the left diaphragm is
    "wall": (0.15, 0.03),  # chest wall next to the lungs
    "shoulder": (-0.62, 0.03),
    "atrium": (0.07, 0.012),  # bulges of the heart beyond the mediastinum
    "ventricle": (0.26, 0.025),
    "knob": (0.055, 0.015),  # aortic knob
    "ribs": (5.3, 0.25),  # number of ribs per half image
    "rib_phase": (0.0, 1.5),
    "arch": (0.30, 0.04),  # how far a rib descends towards the side
    "bone": (1.0, 0.15),
    "clavicle": (-0.56, 0.03),
    "slant": (0.22, 0.05),
    "bubble": (0.10, 0.06),  # gas in the stomach
    "vessels": (1.0, 0.2),
    "breast": (0.035, 0.015),
    "breast_y": (0.26, 0.04),
    "breast_size": (0.29, 0.025),
}
SHIFT_IN_WOMEN = {"thorax": -0.05, "wall": -0.01, "breast": 0.115, "breast_y": 0.01, "shoulder": 0.02, "bone": -0.12}
POSES = {  # mean and standard deviation over images
    "zoom": (1.0, 0.03),
    "shift_x": (0.0, 0.03),
    "shift_y": (0.0, 0.03),
    "angle": (0.0, 0.022),  # radians
    "turn": (0.0, 0.012),  # about the long axis of the body: the mediastinum moves relative to the ribs
    "breath": (0.0, 0.02),
    "exposure": (0.0, 0.05),
    "gain": (4.9, 0.35),
    "tilt": (0.0, 0.03),  # uneven exposure
    "grain": (0.022, 0.004),
    "marker_x": (0.0, 0.03),
    "marker_y": (0.0, 0.04),
}
MARKINGS = 24  # independent patterns of vessels
WIDENING_PER_SD = 0.021  # of each side, per standard deviation of the latent width
MARKER_GLYPHS = torch.tensor(
    [
        [[1, 1, 1, 1, 0], [1, 0, 0, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 0], [1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 0, 1]],
        [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]],
    ],
    dtype=torch.float32,
)  # R, L


def paint(body: dict[str, Tensor], width: Tensor, marks: Tensor, left: Tensor, size: int) -> Tensor:
    """Noise-free films in [0, 1] (b, size, size).

    Traits and poses by name, latent widths and sides of the marker (1: left) are (b,); the weights of lung markings are (b, MARKINGS).
    """
    p = {name: value[:, None, None] for name, value in body.items()}
    axis = (torch.arange(size) + 0.5) * (2 / size) - 1
    x = (axis[None, None, :] - p["shift_x"]) / p["zoom"]  # (b, 1, size)
    y = (axis[None, :, None] - p["shift_y"]) / p["zoom"]  # (b, size, 1)
    lean, sink = p["angle"] * y, p["angle"] * x
    across = x + lean  # (b, size, size)
    sideways = across.abs()
    down = y - sink

    def step(distance: Tensor, soft: float) -> Tensor:
        # An edge sharper than a pixel would cause aliasing.
        return distance.mul_(1 / max(soft, 0.7 / size)).sigmoid_()

    # The rib cage: narrow at the apex, widest near the diaphragm.
    t = (y - 0.42) / (0.42 - p["apex"])
    rib_cage = p["thorax"] * (1 - t.abs().clamp(max=1) ** 2.9).clamp(min=1e-4) ** 0.55 - 0.08 * (y - 0.42).clamp(min=0)
    inside = rib_cage - sideways
    right, left_edge = _mediastinum(p, y, width[:, None, None])
    midline = p["turn"]
    air = step(across - (left_edge + midline), 0.012).add_(step((midline - right) - across, 0.012))
    solid = 1 - air  # heart and mediastinum
    side = (x.abs() - 0.30) / 0.40  # of the diaphragm: two domes, falling steeply at the sides
    diaphragm = p["dome"] + p["breath"] + p["lower"] * torch.sigmoid(x * 30) + 0.10 * side**2 + 0.10 * side.clamp(min=0) ** 4
    chest = step(down - diaphragm, 0.010).neg_().add_(1)
    lung = air.mul_(step(inside.clone(), 0.010)).mul_(chest)
    depth = torch.sigmoid(inside * 9).mul_(lung)  # lungs are thin at the side

    # The body, whose arms extend beyond the image above the armpits, and the skin above the shoulders and the neck.
    flank = p["thorax"] + p["wall"] + 0.05 * torch.sigmoid((y - 0.4) * 6) + 0.5 * torch.sigmoid((-0.14 - y) * 13)
    reach = x.abs()
    skin = p["shoulder"] - 0.16 + 0.22 * (reach - 0.5) + 0.25 * (reach - 0.75).clamp(min=0) ** 2 - 0.8 * torch.sigmoid((0.27 - reach) * 22)
    outline = step(flank - sideways, 0.025).mul_(step(down - skin, 0.022))
    film = outline * (0.60 + 0.10 * torch.sigmoid((y - 0.1) * 4))
    film.addcmul_(depth, torch.full_like(y, -0.40)).addcmul_(lung, 0.05 * y - 0.10)
    film.addcmul_(solid * chest, 0.02 + 0.12 * torch.sigmoid((y + 0.25) * 5))
    film.addcmul_(1 - chest, 0.17 * torch.exp(-((x / 0.75) ** 4)))
    film.add_(_blobs(p, x, y))
    film.addcmul_(_bones(p, x, y, down, inside, solid), p["bone"])
    # Lung markings that branch out from the hila, and the texture of soft tissue.
    spokes, clouds, fade = _patterns(size)
    vessels = (marks @ spokes).mul_(2.2).square_().neg_().clamp_(min=-40).exp_().mul_(fade).view(-1, size, size)
    film.addcmul_(vessels, depth.mul_(0.10 * p["vessels"])).addcmul_((marks @ clouds).view(-1, size, size), outline, value=0.022)
    film.add_(_breasts(p, x, down))
    film.add_(p["tilt"] * (x + 0.5 * y))
    film.sub_(0.53 + p["exposure"]).mul_(p["gain"]).sigmoid_()
    return torch.maximum(film, _marker(p, axis, left))


def _mediastinum(p: dict[str, Tensor], y: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Distance of the right and left edge from the midline. The latent width moves both, most at the level of the great vessels."""

    def bulge(centre: float, spread: float) -> Tensor:
        return torch.exp(-(((y - centre) / spread) ** 2))

    wide = WIDENING_PER_SD * width * (0.65 + 0.5 * bulge(-0.25, 0.3))
    neck = 0.02 * torch.sigmoid((-0.55 - y) * 15)
    right = 0.105 + p["atrium"] * bulge(0.22, 0.22) + 0.02 * bulge(-0.02, 0.12) + neck + wide
    left = 0.095 + p["knob"] * bulge(-0.27, 0.09) + 0.045 * bulge(-0.06, 0.12) + p["ventricle"] * bulge(0.34, 0.27) + neck + wide
    return right.clamp(min=0.03), left.clamp(min=0.03)


def _blobs(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Blurred spots (strength, then centre and spread in x, then in y), and the spine."""
    flat = torch.zeros_like(p["dome"])
    turn = p["turn"]
    spots = [
        (flat - 0.11, turn + 0.005, 0.045, flat - 0.72, 0.36),  # trachea
        (flat + 0.05, turn - 0.165, 0.05, flat + 0.0, 0.11),  # hila
        (flat + 0.05, turn + 0.165, 0.05, flat - 0.05, 0.10),
        (-p["bubble"], flat + 0.36, 0.11, p["dome"] + 0.20, 0.055),
        (flat + 0.12, flat - 0.93, 0.10, p["shoulder"] + 0.12, 0.10),  # heads of the humeri
        (flat + 0.12, flat + 0.93, 0.10, p["shoulder"] + 0.12, 0.10),
        (flat + 0.08, flat - 0.72, 0.09, p["shoulder"] + 0.22, 0.16),  # shoulder blades
        (flat + 0.08, flat + 0.72, 0.09, p["shoulder"] + 0.22, 0.16),
        (flat + 0.10, flat - 0.25, 0.5, flat + 0.75, 0.3),  # liver
    ]
    strength, cx, sx, cy, sy = zip(*spots, strict=True)
    centre_x, centre_y = torch.cat(cx, -1), torch.cat(cy, -1)  # (b, 1, k)
    turned_x, turned_y = centre_x - p["angle"] * centre_y, centre_y + p["angle"] * centre_x
    rows = torch.exp(-(((y - turned_y) / torch.tensor(sy)) ** 2)) * torch.cat(strength, -1)  # (b, size, k)
    columns = torch.exp(-(((x.transpose(1, 2) - turned_x) / torch.tensor(sx)) ** 2))
    # The spine: a band, the discs between vertebrae, and the pedicles next to the midline.
    place = x.transpose(1, 2) - 0.4 * turn
    beat = torch.cos(2 * pi * (5.0 + 0.8 * (1 - y)) * y + p["rib_phase"])
    band = torch.sigmoid((0.075 - place.abs()) * 90)
    pedicles = torch.exp(-(((place.abs() - 0.045) / 0.014) ** 2))
    fade = p["bone"] * torch.sigmoid((y + 0.95) * 8)
    rows = torch.cat([rows, (0.055 + 0.022 * beat) * fade, 0.022 * fade * (0.5 - 0.5 * beat) ** 3], -1)
    return torch.bmm(rows, torch.cat([columns, band, pedicles], -1).transpose(1, 2))


def _bones(p: dict[str, Tensor], x: Tensor, y: Tensor, down: Tensor, inside: Tensor, solid: Tensor) -> Tensor:
    """Ribs and clavicles; brighter at their rims, since bone is hollow."""
    reach = x.abs() / p["thorax"]
    pace = 2 * pi * p["ribs"]
    level = down + 0.06 * down * down
    back = torch.cos(pace * level - (pace * p["arch"] * (1.1 * reach**2.4 - 0.35 * reach) - p["rib_phase"])).sub_(1).mul_(2.6).exp_()
    front = torch.cos(pace * 0.86 * level + (pace * 0.62 * reach.clamp(max=1) + 1.3 * p["rib_phase"])).sub_(1).mul_(2.0).exp_()
    cage = torch.sigmoid((inside + 0.025) * 60).mul_(1 - 0.75 * solid)
    back.mul_(1.55 - back)
    front.mul_(0.38 * torch.sigmoid((reach - 0.5) * 14) * torch.sigmoid((y + 0.45) * 9))
    ribs = back.add_(front).mul_(cage).mul_(0.15 - 0.11 * torch.sigmoid((y - p["dome"] - 0.12) * 14))
    span = x.abs()
    middle = p["clavicle"] - p["slant"] * (span - 0.06) + 0.10 * torch.sin((span - 0.06) * 4.5) * span
    # The clamp avoids denormal results of exp, which take ten times as long.
    clavicle = ((down - middle) * (1 / (0.032 + 0.012 * torch.cos(span * 7)))).square_().neg_().clamp_(min=-40).exp_()
    ends = torch.sigmoid((span - 0.075) * 70) * torch.sigmoid((0.80 - span) * 40)
    return ribs.addcmul_(clavicle.mul_(1.5 - clavicle), 0.17 * ends)


def _breasts(p: dict[str, Tensor], x: Tensor, down: Tensor) -> Tensor:
    """Thickness of the breasts, with a rim at the lower fold."""
    size = p["breast_size"]
    place = ((x.abs() - 0.64 * p["thorax"]) / size) ** 2
    inner = ((down - p["breast_y"]) * (1 / (size * 0.95))).square_().add_(place).neg_().add_(1).clamp_(min=1e-5)
    return inner.sqrt_().mul_(p["breast"])


@lru_cache(maxsize=4)
def _patterns(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Basis patterns (MARKINGS, size * size): waves in polar coordinates around the hila and slow plane waves; and how markings fade."""
    axis = (np.arange(size) + 0.5) * (2 / size) - 1
    x, y = np.abs(axis)[None, :] - 0.10, axis[:, None] + 0.02
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    hand = np.sign(axis)[None, :]
    rng = np.random.default_rng(2022)  # part of the anatomy, so it does not depend on the seed
    spokes, clouds = [], []
    for _ in range(MARKINGS):
        count, bend, start, other = rng.integers(2, 10), rng.normal(0, 9), rng.uniform(0, 2 * pi), rng.uniform(0, pi)
        spokes.append(np.cos(count * angle + bend * hand * np.sqrt(radius) + start + other * hand))
        along, down, phase = rng.normal(0, 5), rng.normal(0, 5), rng.uniform(0, 2 * pi)
        clouds.append(np.cos(along * axis[None, :] + down * axis[:, None] + phase))
    fade = np.exp(-((radius / 0.36) ** 2)) * (1 - np.exp(-((radius / 0.12) ** 2)))
    mixed = [(np.stack(fields).reshape(MARKINGS, -1) * np.sqrt(2 / MARKINGS)).astype(np.float32) for fields in (spokes, clouds)]
    return torch.from_numpy(mixed[0]), torch.from_numpy(mixed[1]), torch.from_numpy(fade.reshape(-1).astype(np.float32))


def _marker(p: dict[str, Tensor], axis: Tensor, left: Tensor) -> Tensor:
    """The lead letter next to a shoulder: L on the right of the image, or R on its left."""
    tall, broad = MARKER_GLYPHS.shape[1:]
    pixel = 0.020
    side = (2 * left - 1)[:, None, None]
    column = (axis[None, None, :] - 0.86 * side - p["marker_x"]) / pixel - (torch.arange(broad)[None, :, None] - (broad - 1) / 2)
    row = (axis[None, :, None] + 0.80 - p["marker_y"]) / pixel - (torch.arange(tall)[None, None, :] - (tall - 1) / 2)
    dabs = [(1.1 - t.abs()).clamp_(0, 1) for t in (row, column)]
    return torch.bmm(torch.bmm(dabs[0], MARKER_GLYPHS[left.long()]), dabs[1]).mul_(0.92).clamp_(max=0.92)

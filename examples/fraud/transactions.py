"""Synthetic card payments: one in ten thousand is fraudulent."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FEATURES = (
    "amount",
    "hour",
    "distance_km",
    "minutes_since_last",
    "merchant_risk",
    "device_age_days",
    "payments_today",
    "foreign",
)
LABEL = "is_fraud"

Floats = npt.NDArray[np.float32]


def transactions(rows: int, frauds: int, seed: int) -> pa.Table:
    """``rows`` payments with exactly ``frauds`` fraudulent ones among them, in random order.

    Three kinds of fraud, each resembling a rare kind of legitimate payment: card testing (small
    amounts in quick succession), account takeover (a new device far from home, large amounts),
    and purchases at night from risky merchants. No single column separates them.
    """
    dice = np.random.default_rng(seed)
    table = _honest(rows, dice)
    where = dice.choice(rows, frauds, replace=False)
    parts = np.array_split(where, 3)
    for part, kind in zip(parts, (_testing, _takeover, _night), strict=True):
        for name, values in kind(len(part), dice).items():
            table[name][part] = values
    label = np.zeros(rows, dtype=np.float32)
    label[where] = 1
    return pa.table({**table, LABEL: label})


def _honest(rows: int, dice: np.random.Generator) -> dict[str, Floats]:
    float32 = np.float32
    return {
        "amount": np.exp(dice.standard_normal(rows, dtype=float32) * 1.1 + 3.2),
        "hour": (14 + 4.5 * dice.standard_normal(rows, dtype=float32)) % 24,
        "distance_km": np.exp(dice.standard_normal(rows, dtype=float32) * 1.5 + 1.5),
        "minutes_since_last": np.exp(dice.standard_normal(rows, dtype=float32) * 1.6 + 6),
        "merchant_risk": dice.random(rows, dtype=float32) ** 3,
        "device_age_days": np.exp(dice.standard_normal(rows, dtype=float32) * 1.2 + 5.5),
        "payments_today": np.exp(dice.standard_normal(rows, dtype=float32) * 0.7 + 0.7),
        "foreign": (dice.random(rows, dtype=float32) < 0.08).astype(float32),
    }


def _testing(rows: int, dice: np.random.Generator) -> dict[str, npt.NDArray[np.float64]]:
    return {
        "amount": np.exp(dice.normal(0.6, 0.6, rows)),
        "minutes_since_last": np.exp(dice.normal(1.2, 1.0, rows)),
        "payments_today": np.exp(dice.normal(2.6, 0.5, rows)),
    }


def _takeover(rows: int, dice: np.random.Generator) -> dict[str, npt.NDArray[np.float64]]:
    return {
        "amount": np.exp(dice.normal(5.6, 0.8, rows)),
        "distance_km": np.exp(dice.normal(5.5, 1.2, rows)),
        "device_age_days": np.exp(dice.normal(1.2, 1.0, rows)),
        "foreign": (dice.random(rows) < 0.7).astype(float),
    }


def _night(rows: int, dice: np.random.Generator) -> dict[str, npt.NDArray[np.float64]]:
    return {
        "hour": dice.normal(3.5, 1.2, rows) % 24,
        "amount": np.exp(dice.normal(5.0, 0.7, rows)),
        "merchant_risk": np.sqrt(dice.random(rows)) * 0.4 + 0.6,
        "minutes_since_last": np.exp(dice.normal(3.0, 1.0, rows)),
    }

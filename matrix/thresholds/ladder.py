"""The ladder: the values of a knob that a search may try, in order, close enough that steps are about 3 % apart."""

from __future__ import annotations

FINENESS = 32
"""Steps between a value and its double, once there is room for them: neighbours are then 2 to 3 % apart."""


def ladder(low: int, high: int, unit: int = 1) -> tuple[int, ...]:
    """Return multiples of `unit` from `low` to `high`, every one at first and 32 to a doubling later on.

    Both ends are in it. Raises ValueError where an end is no positive multiple of `unit` or the ends are swapped.
    """
    if unit < 1 or low < unit or low % unit or high % unit or high < low:
        raise ValueError(f"no ladder of {unit}s leads from {low} to {high}")
    found, step, at = [], 1, low // unit
    top = high // unit
    while at < top:
        found.append(at * unit)
        while at >= 2 * FINENESS * step:
            step *= 2
        at += step
    return (*found, high)


def fractions(low: float, high: float, step: float) -> tuple[float, ...]:
    """Return low, low + step, … up to `high`, each rounded to two digits."""
    count = round((high - low) / step)
    return tuple(round(low + number * step, 2) for number in range(count + 1))

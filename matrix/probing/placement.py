"""Placement: which probes see which GPUs, for how long, and what is known of the machine while they do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from matrix.gpus.fingerprint import digest, fingerprint
from matrix.gpus.inventory import VISIBLE, Inventory, take_inventory
from matrix.gpus.need import Need, eligible, lacking
from matrix.gpus.nvml import Driver, NoDriverError, driver
from matrix.gpus.pool import Grant, Pool, StoppedError
from matrix.gpus.settling import Settling
from matrix.gpus.warming import warm
from matrix.probing import processes
from matrix.probing.guard import GO, Guard
from matrix.probing.lines import EndedProbe, PlannedProbe
from matrix.probing.session import Surroundings, Watch
from matrix.tier import Tier

Ended = Callable[[EndedProbe], None]


@dataclass(slots=True, kw_only=True)
class Fingerprint:
    """What a visit knows of its machine: the facts, their digest, and the seconds for which it held GPUs."""

    facts: Mapping[str, Any]
    held_s: float = 0.0

    @property
    def digest(self) -> str:
        """Return the digest that every observation of the visit names."""
        return digest(self.facts)


@dataclass(slots=True, kw_only=True)
class Placement:
    """Places probes on this machine: those of tier `gpu` on GPUs that the pool grants, all others on none.

    Attributes:
        pool: hands out the GPUs; one for all visits of a run.
        driver: is asked what a probe left.
        warm: makes the first use of a GPU, so that what the driver keeps after it is there before the first probe.
        settling: makes what watches the memory of granted GPUs.
    """

    pool: Pool
    driver: Driver = field(default_factory=driver)
    warm: Callable[[str], None] = warm
    settling: Callable[..., Settling] = Settling

    @classmethod
    def here(cls) -> Placement:
        """Return the placement on this machine's GPUs, as far as the caller's environment shows them."""
        return cls(pool=Pool(inventory=take_inventory()))

    @property
    def inventory(self) -> Inventory:
        """Return the GPUs there are to be placed on."""
        return self.pool.inventory

    @property
    def width(self) -> int:
        """Return how many visits can have a GPU at once, 1 at least."""
        return max(len(self.inventory.gpus), 1)

    def stop(self) -> None:
        """End all that runs, in whatever thread: it raises KeyboardInterrupt there."""
        self.pool.stop()

    def lacking(self, probe: PlannedProbe) -> str:
        """Return why the probe cannot be placed here, "" where it can."""
        return lacking(probe.need, self.inventory) if probe.tier is Tier.GPU else ""

    def run(
        self,
        given: Surroundings,
        probes: Sequence[PlannedProbe],
        ended: Ended,
        known: Callable[[Fingerprint], None],
        *,
        python: str,
        installed: Mapping[str, str],
        tell: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Run the probes that see no GPU, then those that do, a grant for all that need the same.

        `known` is told the fingerprint once before the first probe on a GPU, and again after the last.

        Raises:
            ToolError: pytest does not start, or GPUs cannot be granted.
            KeyboardInterrupt: the pool was stopped.
        """
        plain = [probe for probe in probes if probe.tier is not Tier.GPU]
        if plain:
            Watch(given, ended, stopped=self._is_stopped).run(plain)
        groups = self._groups(probe for probe in probes if probe.tier is Tier.GPU)
        if not groups:
            return
        try:
            facts = fingerprint(self.driver, self.inventory, python=python, installed=installed, environ=given.env)
        except NoDriverError as error:
            _refuse([probe for _, group in groups for probe in group], f"no NVIDIA driver answers: {error}", ended)
            return
        found = Fingerprint(facts=facts)
        known(found)
        for need, group in groups:
            try:
                wanted = "1 GPU" if need.gpus == 1 else f"{need.gpus} GPUs"
                waits = functools.partial(tell, f"waits for {wanted}, which others have (`verl-matrix gpus`)")
                with self.pool.grant(need, waits=waits) as grant:
                    self._on_gpus(given, group, ended, grant, found)
                    found.held_s += self.pool.clock() - grant.since
            except StoppedError:
                raise KeyboardInterrupt from None
        known(found)

    def _on_gpus(
        self, given: Surroundings, group: Sequence[PlannedProbe], ended: Ended, grant: Grant, found: Fingerprint
    ) -> None:
        self.warm(grant.visible)
        settling = self.settling(driver=self.driver, gpus=grant.gpus)
        detail: dict[str, object] = {"fingerprint": found.digest, "gpu": [gpu.name for gpu in grant.gpus]}
        others = settling.others_mib()
        if others:
            detail["gpu_others_mib"] = others
        go = given.trials.with_name("go")
        go.unlink(missing_ok=True)
        guard = Guard(settling=settling, go=go, detail=detail)
        settling.ends = (
            lambda: [item.name for item in processes.end_strays(given.token, given.work.parent)],
            lambda: [item.name for item in guard.halt(given.token)],
        )
        env = {**given.env, VISIBLE: grant.visible, GO: str(go)}
        Watch(replace(given, env=env, limits=given.limits.on_gpu()), ended, guard, self._is_stopped).run(group)

    def _is_stopped(self) -> bool:
        return self.pool.stopped

    def _groups(self, probes: Iterable[PlannedProbe]) -> list[tuple[Need, list[PlannedProbe]]]:
        """Return the probes by how many GPUs they need and which would do, the fewest first; each kind is one grant.

        Two needs that the same GPUs meet are one: what a group needs is the most of what its probes do.
        """
        groups: dict[tuple[int, frozenset[int]], list[PlannedProbe]] = {}
        for probe in probes:
            able = frozenset(gpu.index for gpu in eligible(probe.need, self.inventory))
            groups.setdefault((probe.gpus, able), []).append(probe)
        return [
            (_most([probe.need for probe in group]), group)
            for (_, _), group in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[0][1])))
        ]


def _most(needs: Sequence[Need]) -> Need:
    return Need(
        gpus=max(need.gpus for need in needs),
        capability=max(need.capability for need in needs),
        memory_gib=max(need.memory_gib for need in needs),
    )


def _refuse(probes: Sequence[PlannedProbe], reason: str, ended: Ended) -> None:
    for probe in probes:
        ended(EndedProbe.never_begun(probe.test, reason))

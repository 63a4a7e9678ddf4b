"""Compute memory that all plans of a backend share, because one of them runs at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

PlanType = TypeVar("PlanType")


class SharedMemory(ABC, Generic[PlanType]):
    """Memory as large as the largest plan needs. A larger plan replaces it; the last plan to leave frees it."""

    def __init__(self) -> None:
        self._plans: list[PlanType] = []

    def join(self, plan: PlanType) -> int:
        """Make room for one more plan; returns the bytes that were added for it."""
        before = self._total()
        try:
            self._plans.append(plan)
            self._make_room(plan)
        except BaseException:
            self.leave(plan)
            raise
        return max(0, self._total() - before)

    def leave(self, plan: PlanType) -> None:
        """One plan less."""
        if plan in self._plans:  # else Ctrl-C came before it joined
            self._plans.remove(plan)
        if not self._plans:
            self._free()

    @abstractmethod
    def _total(self) -> int:
        """The bytes that are booked now."""

    @abstractmethod
    def _make_room(self, plan: PlanType) -> None:
        """Replace the memory if it is too small for a plan."""

    @abstractmethod
    def _free(self) -> None:
        """Free all memory."""

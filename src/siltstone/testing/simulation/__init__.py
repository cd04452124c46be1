"""A simulation of a whole lake: many processes with wrong clocks over a bad store, all drawn from one seed."""

from siltstone.testing.simulation.outcomes import Counts, Outcome
from siltstone.testing.simulation.steps import Plan, Step, make_plan
from siltstone.testing.simulation.world import simulate

__all__ = ["Counts", "Outcome", "Plan", "Step", "make_plan", "simulate"]

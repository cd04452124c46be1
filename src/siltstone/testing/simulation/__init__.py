"""A simulation of a whole lake: many processes with wrong clocks over a bad store, all drawn from one seed."""

from siltstone.testing.simulation.steps import Plan, Step, make_plan
from siltstone.testing.simulation.world import Outcome, simulate

__all__ = ["Outcome", "Plan", "Step", "make_plan", "simulate"]

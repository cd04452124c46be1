"""Tools to test storage implementations: a conformance suite and injected faults."""

from siltstone.testing.faults import FaultKind, FaultyObjects, Killed, faults
from siltstone.testing.storage_conformance import CHECKS, check_signatures

__all__ = ["CHECKS", "FaultKind", "FaultyObjects", "Killed", "check_signatures", "faults"]

"""What the `cycle` commands and `serve` hand to the output: plain records, cheap to import."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from siltstone.service.results import Control, NodeInfo, ServiceStatus, TriggerRequest


@dataclass(frozen=True)
class ServiceReport:
    """All about now, and the nodes of the last day."""

    database: str
    status: "ServiceStatus"
    nodes: "Sequence[NodeInfo]"


@dataclass(frozen=True)
class Triggered:
    """A request for a cycle, and whether its outcome was waited for."""

    request: "TriggerRequest"
    waited: bool


@dataclass(frozen=True)
class Controlled:
    """What an operator did to the service; unchanged where there was nothing to undo."""

    action: Literal["frozen", "unfrozen", "disabled", "enabled"]
    changed: bool
    control: "Control | None" = None


@dataclass(frozen=True)
class Serving:
    """A service that has started; no address where it has no web pages."""

    node: str
    root: str
    database: str
    address: str | None
    workers: int

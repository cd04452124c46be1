"""Making a failing simulation short: leave out steps, then what is special about them, while it fails in the same way."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from siltstone.testing.simulation.outcomes import Outcome
from siltstone.testing.simulation.steps import Plan, Step
from siltstone.testing.simulation.world import simulate

_PLAIN: dict[str, Any] = {
    field.name: field.default
    for field in fields(Step)
    if field.name in ("calls", "fault", "wait_ms", "clock", "sleeps")
}
_SHORT_NAMES = {"wait_ms": "wait"}


def minimize(failed: Outcome, *, ignored: Iterable[str] = (), may_go_on: Callable[[], bool] = lambda: True) -> Outcome:
    """Return the shortest simulation found that ends with a violation of the same kind; until no more may be tried."""
    assert failed.violation is not None
    kind = failed.violation.kind
    best = failed

    def attempt(steps: Sequence[Step]) -> bool:
        nonlocal best
        if not may_go_on():
            return False
        outcome = simulate(replace(failed.plan, steps=tuple(steps)), ignored)
        if outcome.violation is None or outcome.violation.kind != kind:
            return False
        best = outcome
        return True

    attempt(failed.plan.steps[: failed.counts.steps])
    _leave_out_steps(lambda: best.plan.steps, attempt)
    for place, step in reversed(list(enumerate(best.plan.steps))):
        for plainer in _plainer(step):
            steps = best.plan.steps
            attempt([*steps[:place], plainer(steps[place]), *steps[place + 1 :]])
    _leave_out_steps(lambda: best.plan.steps, attempt)
    return best


def _leave_out_steps(steps: Callable[[], Sequence[Step]], attempt: Callable[[Sequence[Step]], bool]) -> None:
    """Leave out runs of steps, long ones first, from the end on."""
    size = max(len(steps()) // 2, 1)
    while True:
        end = len(steps())
        while end > 0:
            start = max(end - size, 0)
            attempt([*steps()[:start], *steps()[end:]])
            end = start
        if size == 1:
            return
        size //= 2


def _plainer(step: Step) -> Iterator[Callable[[Step], Step]]:
    for name, plain in _PLAIN.items():
        if getattr(step, name) != plain:
            yield lambda known, name=name, plain=plain: replace(known, **{name: plain})  # type: ignore[misc]


def describe_steps(whole: Plan, kept: Sequence[Step]) -> str:
    """Write which steps of a plan were kept, and what was left out of them: `3 7-wait 12-calls-fault`."""
    known = {step.number: step for step in whole.steps}
    texts = []
    for step in kept:
        dropped = [name for name in _PLAIN if getattr(step, name) != getattr(known[step.number], name)]
        texts.append("-".join([str(step.number), *(_SHORT_NAMES.get(name, name) for name in dropped)]))
    return " ".join(texts)


def choose_steps(whole: Plan, description: str) -> Plan:
    """Return the plan that `describe_steps` described."""
    long_names = {_SHORT_NAMES.get(name, name): name for name in _PLAIN}
    known = {step.number: step for step in whole.steps}
    chosen = []
    for text in description.split():
        number, *dropped = text.split("-")
        chosen.append(replace(known[int(number)], **{long_names[name]: _PLAIN[long_names[name]] for name in dropped}))
    return replace(whole, steps=tuple(chosen))

"""Documents, their deltas and holds as text."""

from collections.abc import Iterator, Sequence

import orjson

from siltstone.cli.render.parts import Line, Shown, render
from siltstone.cli.results import Documents, DocumentStatus, Done, History, HoldList, Timeline
from siltstone.text import format_time


@render.register
def _(done: Done) -> Iterator[Shown]:
    yield Line(done.sentence)


@render.register
def _(documents: Documents) -> Iterator[Shown]:
    for document in documents.documents:
        yield Line(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


@render.register
def _(status: DocumentStatus) -> Iterator[Shown]:
    yield status.state
    yield from render(Documents([status.document]))


@render.register
def _(timeline: Timeline) -> Iterator[Shown]:
    for event in timeline.items:
        mark = "redundant" if event.is_redundant else "owned" if event.is_owned else event.kind
        yield Line(f"{event.at}  {event.change_id}  {mark:<10}  {event.delta}{_tags(event.tags)}")
        if event.note:
            yield Line(f"{'':26}{event.note}")
    if not timeline.items:
        yield Line(f"nothing was written to {timeline.key}")


@render.register
def _(history: History) -> Iterator[Shown]:
    from siltstone.documents.language import value_text

    version = 0
    for entry in history.items:
        if entry.version > version + 1:
            first, last = version + 1, entry.version - 1
            yield f"version {first} is not kept" if first == last else f"versions {first} to {last} are not kept"
        version = entry.version
        yield Line(f"{entry.at}  {entry.change_id}  version {entry.version}  {entry.delta}{_tags(entry.tags)}")
        yield Line(f"{'':26}{'deleted' if entry.content is None else value_text(entry.content)}")
    if not history.items:
        yield Line(f"nothing was written to {history.key}")


def _tags(tags: Sequence[str]) -> str:
    return f"  #{' #'.join(tags)}" if tags else ""


@render.register
def _(holds: HoldList) -> Iterator[Shown]:
    for hold in holds.items:
        reason = f"  {hold.reason}" if hold.reason else ""
        yield Line(f"{hold.hold_id}  since {format_time(hold.since_ms)}  until {format_time(hold.until_ms)}{reason}")
    if not holds.items:
        yield f"nothing of {holds.table} is held"

"""The pages of tables: the list, and of each one its state, rows, keys or documents, and schema."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import HTMLResponse

from siltstone.service import service_status
from siltstone.web.charts import bucket_maps, bytes_charts, lag_chart, rows_chart, size_chart
from siltstone.web.pages import RowsHere, SiteHere, reader, show
from siltstone.web.reader_lines import reader_lines
from siltstone.web.row_reader import KeyAnswer
from siltstone.web.table_list import choose_tables

# The parameters of an address that have the values of a key's columns begin with this.
KEY_PREFIX = "key."

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[Depends(reader)])


@router.get("/tables")
def tables(request: Request, site: SiteHere, q: str = "", order: str = "", page: int = 1) -> HTMLResponse:
    """Show the tables with a text in their names, in an order, a page of them at a time."""
    status = service_status(site.database, site.settings)
    failing = {failing.table for failing in status.failing}
    chosen = choose_tables(site.lake.tables(), failing, text=q, order=order, page=page)
    paused = {pause.table for pause in status.paused}
    return show(request, "tables.html", list=chosen, failing=failing, paused=paused, now_ms=status.now_ms)


@router.get("/tables/{name}")
def table(request: Request, name: str, site: SiteHere) -> HTMLResponse:
    """Show how a table is: its rounds, sizes and lag over time, its buckets, and what waits."""
    details = site.lake.table(name)
    status = service_status(site.database, site.settings)
    oldest_at = details.overview.oldest_at
    return show(
        request,
        "table.html",
        details=details,
        table=details.overview,
        ingests=site.lake.ingests(name),
        publications=site.lake.publications(name),
        sizes=size_chart(details.rounds),
        rows=rows_chart(details.rounds),
        lags=lag_chart(details.rounds, None if oldest_at is None else max(status.now_ms - oldest_at, 0)),
        flows=bytes_charts(details.rounds),
        maps=bucket_maps(details.buckets),
        failing=next((failing for failing in status.failing if failing.table == name), None),
        pause=next((pause for pause in status.paused if pause.table == name), None),
        now_ms=status.now_ms,
        **_about(site, name),
    )


@router.get("/tables/{name}/schema")
def schema(request: Request, name: str, site: SiteHere) -> HTMLResponse:
    """Show the columns of a table, its rules and properties, and how to read it elsewhere."""
    about = site.lake.describe(name)
    lines = reader_lines(
        site.lake.root, name, site.lake.publications(name), holds_documents=site.lake.holds_documents(name)
    )
    return show(request, "schema.html", about=about, readers=lines, **_about(site, name))


@router.get("/tables/{name}/rows")
def preview(request: Request, name: str, site: SiteHere, rows: RowsHere) -> HTMLResponse:
    """Show the first rows of a table, or the keys of the first documents."""
    about = _about(site, name)
    return show(request, "rows.html", preview=rows.preview(name), **about)


@router.get("/tables/{name}/keys")
def keys(
    request: Request, name: str, site: SiteHere, rows: RowsHere, null: Annotated[list[str] | None, Query()] = None
) -> HTMLResponse:
    """Show the form for a key; once one is given, all that is known of it."""
    described = site.lake.describe(name)
    texts = typed_key(request.query_params, null or [])
    answer: KeyAnswer | None = None
    if texts and explorable(described.primary_keys, described.drop_duplicates):
        answer = rows.explain(name, texts)
    return show(
        request,
        "keys.html",
        code=200 if answer is None or not answer.problems else 400,
        described=described,
        texts=texts,
        answer=answer,
        **_about(site, name),
    )


@router.get("/tables/{name}/documents")
def document(request: Request, name: str, site: SiteHere, rows: RowsHere, key: str = "") -> HTMLResponse:
    """Show the form for a document's key; once one is given, the timeline of the document."""
    about = _about(site, name)
    if not about["holds_documents"]:
        raise HTTPException(404, "This table holds rows, not documents.")
    events = rows.timeline(name, key) if key else None
    return show(request, "document.html", key=key, events=events, **about)


def typed_key(parameters: Mapping[str, str], nulls: list[str]) -> dict[str, str | None]:
    """Return the values of a key's columns as they were typed, None for those that are said to be null.

    A column that is null and has a value has the value; an empty one was not typed.
    """
    typed: dict[str, str | None] = dict.fromkeys(nulls)
    for name, value in parameters.items():
        if name.startswith(KEY_PREFIX) and (value or name.removeprefix(KEY_PREFIX) not in typed):
            typed[name.removeprefix(KEY_PREFIX)] = value
    return typed


def explorable(primary_keys: object, drop_duplicates: bool) -> bool:
    """Return whether one row wins for each key, so that it can be said why."""
    return bool(primary_keys) and drop_duplicates


def _about(site: SiteHere, name: str) -> dict[str, Any]:
    """Return what the heads of all pages of a table need. Raises: NotFoundError."""
    return {"name": name, "holds_documents": site.lake.holds_documents(name), "has_rows": site.rows is not None}

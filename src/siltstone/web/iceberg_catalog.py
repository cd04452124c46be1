"""A read-only catalog of the tables that are published as Iceberg, by Iceberg's REST protocol: what it says, engines read by name.

Only what can be read is declared (`endpoints`), so that engines refuse to write before they try.
"""

from typing import Any

from fastapi import APIRouter, Depends, HTTPException, Response

from siltstone.web.pages import SiteHere, reader

_ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)

router = APIRouter(prefix="/iceberg/v1", include_in_schema=False, dependencies=[Depends(reader)])


@router.get("/config")
def config() -> dict[str, Any]:
    """What a client has to know first."""
    return {"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS}


@router.get("/namespaces")
def namespaces(site: SiteHere, parent: str | None = None) -> dict[str, Any]:
    """The namespaces; none has any inside it."""
    return {"namespaces": [] if parent else [[name] for name in site.lake.namespaces()]}


@router.api_route("/namespaces/{namespace}", methods=["GET", "HEAD"])
def namespace(site: SiteHere, namespace: str) -> dict[str, Any]:
    """One namespace."""
    if namespace not in site.lake.namespaces():
        raise HTTPException(404, f"Namespace does not exist: {namespace}")
    return {"namespace": [namespace], "properties": {}}


@router.get("/namespaces/{namespace}/tables")
def tables(site: SiteHere, namespace: str) -> dict[str, Any]:
    """The tables of a namespace that are published as Iceberg."""
    if namespace not in site.lake.namespaces():
        raise HTTPException(404, f"Namespace does not exist: {namespace}")
    names = site.lake.iceberg_tables(namespace)
    return {"identifiers": [{"namespace": [namespace], "name": name} for name in names]}


@router.head("/namespaces/{namespace}/tables/{table}")
def has_table(site: SiteHere, namespace: str, table: str) -> Response:
    """Whether there is a table."""
    load_table(site, namespace, table)
    return Response(status_code=204)


@router.get("/namespaces/{namespace}/tables/{table}")
def load_table(site: SiteHere, namespace: str, table: str) -> dict[str, Any]:
    """The newest metadata of a table."""
    found = site.lake.iceberg_metadata(f"{namespace}.{table}")
    if found is None:
        raise HTTPException(404, f"Table does not exist: {namespace}.{table}")
    return {"metadata-location": found[0], "metadata": found[1], "config": {}}

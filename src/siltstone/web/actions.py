"""What forms do: the controls, and logging in and out. Every form must come from a page of ours."""

from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Form, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from siltstone.service import Database, controls
from siltstone.web.access import SESSION_COOKIE, VISIT_COOKIE, is_from_elsewhere
from siltstone.web.pages import SiteHere, may_control, set_cookie, show, site_of


class Ask(NamedTuple):
    """Who pressed a button, and for how long a freeze would last."""

    requester: str
    seconds: float


# What each button does, and the notice that says so.
ACTIONS: Mapping[str, tuple[Callable[[Database, Ask], object], str]] = {
    "trigger": (lambda database, ask: controls.trigger_cycle(database, requester=ask.requester), "triggered"),
    "trim": (lambda database, ask: controls.trigger_cycle(database, trim=True, requester=ask.requester), "trimming"),
    "freeze": (lambda database, ask: controls.freeze(database, seconds=ask.seconds, requester=ask.requester), "frozen"),
    "unfreeze": (lambda database, ask: controls.unfreeze(database), "unfrozen"),
    "disable": (lambda database, ask: controls.disable(database, requester=ask.requester), "disabled"),
    "enable": (lambda database, ask: controls.enable(database), "enabled"),
}
FREEZES = {"1800": "30 minutes", "7200": "2 hours", "28800": "8 hours", "86400": "1 day"}


def own_form(request: Request, key: Annotated[str, Form()] = "") -> None:
    """Refuse a form that another site sent, or that was made before this process started."""
    is_own = site_of(request).access.is_own_form(request.cookies.get(VISIT_COOKIE, ""), key)
    if is_from_elsewhere(request.headers) or not is_own:
        raise HTTPException(403, "This form is not, or no longer, valid. Reload the page and try again.")


router = APIRouter(include_in_schema=False, dependencies=[Depends(own_form)])


@router.post("/controls/{action}")
def control(request: Request, action: str, site: SiteHere, seconds: Annotated[str, Form()] = "7200") -> Response:
    """Do what a button says."""
    if not may_control(request):
        return _go_to("/login")
    if action not in ACTIONS or seconds not in FREEZES:
        raise HTTPException(404, "Unknown control.")
    do, notice = ACTIONS[action]
    do(site.database, Ask(web_requester(request), float(seconds)))
    site.wake()
    return _go_to(f"/?done={notice}")


@router.post("/login")
def login(request: Request, site: SiteHere, token: Annotated[str, Form()] = "") -> Response:
    """Let a browser in that shows the token."""
    if not site.access.is_token(token.strip()):
        return show(request, "login.html", code=401, is_wrong=True)
    response = _go_to("/?done=logged-in")
    set_cookie(request, response, SESSION_COOKIE, site.access.new_session())
    return response


@router.post("/logout")
def logout() -> Response:
    """Forget the session."""
    response = _go_to("/?done=logged-out")
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return response


login_page = APIRouter(include_in_schema=False)


@login_page.get("/login")
def show_login(request: Request) -> HTMLResponse:
    """Show the form that asks for the token."""
    return show(request, "login.html", is_wrong=False)


def web_requester(request: Request) -> str:
    """Return who asked, for others to see."""
    return f"web from {request.client.host}" if request.client else "web"


def _go_to(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303)

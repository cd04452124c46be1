"""`siltstone serve`: the compaction service in this process."""

from typing import Annotated, Literal

import typer

from siltstone.cli.cycles import DatabaseAddress
from siltstone.cli.options import Master, Shell, command, option, parse_duration_ms

TOKEN_VARIABLE = "SILTSTONE_TOKEN"  # noqa: S105 - the name of a variable, no token

app = typer.Typer()


@command(
    app,
    "serve",
    "siltstone serve",
    "siltstone serve --interval 5m --workers 2 --log-format json",
    "siltstone serve --database postgresql://silt@db/silt --host 0.0.0.0 --token-file /run/secrets/silt",
    "siltstone serve --database postgresql://silt@db/silt --master spark://head:7077 --no-web",
)
def serve(
    shell: Shell,
    database: DatabaseAddress = None,
    worker: Annotated[bool, option("--worker/--no-worker", "Compact, or only lead.")] = True,
    web: Annotated[bool, option("--web/--no-web", "Serve pages, JSON API and metrics.")] = True,
    workers: Annotated[int, option("--workers N", "Tables at the same time.", min=1)] = 1,
    master: Master = None,
    node: Annotated[str | None, option("--node NAME", "What this process is called, else host and process id.")] = None,
    host: Annotated[str, option("--host", "Where to listen; other than loopback, a token is needed.")] = "127.0.0.1",
    port: Annotated[int, option("--port", "The port; 0 for any free one.", min=0, max=65535)] = 8765,
    allowed_host: Annotated[
        list[str] | None, option("--allowed-host NAME", "Also answer to this name, e.g. that of a proxy.")
    ] = None,
    token: Annotated[
        str | None,
        option(
            "--token",
            f"What the web's controls need, else {TOKEN_VARIABLE}; other users may see options, so prefer these.",
            envvar=TOKEN_VARIABLE,
            show_envvar=False,
        ),
    ] = None,
    token_file: Annotated[str | None, option("--token-file PATH", "A file with the token.")] = None,
    read_token_file: Annotated[
        str | None, option("--read-token-file PATH", "A file with a token that only allows to look.")
    ] = None,
    tls_certificate: Annotated[
        str | None, option("--tls-certificate PATH", "Serve by HTTPS, with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[str | None, option("--tls-key PATH", "The key of the certificate (PEM).")] = None,
    private: Annotated[bool, option("--private", "Seeing pages, API and metrics needs the token, too.")] = False,
    preview: Annotated[
        bool,
        option(
            "--preview/--no-preview",
            "Show rows of tables on pages and in the API; where a token is set, to those who have it.",
        ),
    ] = True,
    interval: Annotated[str, option("--interval TIME", "From the start of a cycle to that of the next.")] = "15m",
    tick: Annotated[str, option("--tick TIME", "How often to check for work.")] = "5s",
    lease: Annotated[str, option("--lease TIME", "Others take over from a process silent for this long.")] = "1m",
    retention: Annotated[str, option("--retention TIME", "Trimming keeps compacted deltas this long.")] = "7d",
    backlog_bytes: Annotated[
        int, option("--backlog-bytes N", "Begin a cycle early when this much waits; 0: never.", min=0)
    ] = 1 << 30,
    backlog_age: Annotated[
        str | None, option("--backlog-age TIME", "Begin a cycle early when a delta has waited this long.")
    ] = None,
    quiet_hours: Annotated[
        str | None, option("--quiet-hours HH:MM-HH:MM", "Begin no cycle by itself in these hours, in UTC.")
    ] = None,
    max_claims: Annotated[
        int | None, option("--max-claims N", "Work on so many tables at once, on all nodes together.", min=1)
    ] = None,
    max_claimed_bytes: Annotated[
        int | None, option("--max-claimed-bytes N", "Work on so many bytes of deltas at once, likewise.", min=1)
    ] = None,
    grace: Annotated[str, option("--grace TIME", "When stopping, wait this long for compactions.")] = "10s",
    log_format: Annotated[Literal["text", "json"], option("--log-format", "On standard error.")] = "text",
) -> None:
    """Compact all tables in cycles, until stopped.

    Several processes with the same --database share the work; one of them leads. Ctrl-C or SIGTERM ends it cleanly: what
    is being compacted is finished or handed back. A second one ends it at once.
    """
    times = {"interval": interval, "tick": tick, "lease": lease, "retention": retention, "grace": grace}
    seconds = {name: parse_duration_ms(text, f"--{name}") / 1000 for name, text in times.items()}
    age = None if backlog_age is None else parse_duration_ms(backlog_age, "--backlog-age") / 1000
    if token is not None and token_file is not None:
        raise typer.BadParameter("use --token or --token-file, not both", param_hint="--token-file")
    if (tls_certificate is None) != (tls_key is None):
        raise typer.BadParameter("a certificate needs its key, and a key its certificate", param_hint="--tls-key")
    from siltstone.cli.process import ServeOptions, run_service
    from siltstone.service import parse_quiet_hours, service_settings, set_up_logs

    if token_file is not None or read_token_file is not None:
        from siltstone.web.site import read_token

        token = token if token_file is None else read_token(token_file)
    set_up_logs(log_format, debug=shell.debug)
    options = ServeOptions(
        root=shell.root,
        database=database,
        workers=workers if worker else 0,
        has_web=web,
        master=master,
        node=node,
        host=host,
        port=port,
        allowed_hosts=allowed_host or (),
        is_private=private,
        has_preview=preview,
        token=token,
        read_token=None if read_token_file is None else read_token(read_token_file),
        tls=None if tls_certificate is None or tls_key is None else (tls_certificate, tls_key),
        grace_seconds=seconds.pop("grace"),
        settings=service_settings(
            **seconds,
            backlog_bytes=backlog_bytes or None,
            backlog_age=age,
            quiet_hours=None if quiet_hours is None else parse_quiet_hours(quiet_hours),
            max_claims=max_claims,
            max_claimed_bytes=max_claimed_bytes,
        ),
    )
    if not run_service(options, shell):
        raise typer.Exit(1)

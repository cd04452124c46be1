"""The pages, the JSON API and the metrics of the compaction service."""

from siltstone.errors import require_packages

require_packages(
    "the web pages", ("fastapi", "jinja2", "prometheus_client", "python_multipart", "uvicorn"), "siltstone[service]"
)

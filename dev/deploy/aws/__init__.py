"""Deploying to AWS: wheels in S3, jobs in Glue."""

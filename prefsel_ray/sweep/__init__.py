"""Sweeps: cells, the content-addressed store, the plan, the runner and MLflow tracking."""

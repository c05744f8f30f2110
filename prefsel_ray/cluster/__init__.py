"""The Ray edge: session and preflight, Data streams, model actors, Train jobs under Tune."""

"""Writing with a policy: guided by a reward head, or shown the user's own examples."""

"""From traces and texts to numbers with n, ties and intervals. Plain numpy in, `Measured` out; import the modules."""

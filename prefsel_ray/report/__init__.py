"""From a sweep's tables to the page a reader sees. Reads files only; nothing here computes a metric of its own."""

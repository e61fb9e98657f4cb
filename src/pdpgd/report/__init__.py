"""Reports on stored results: an HTML page that opens from disk, tables and figures. Nothing here loads torch."""

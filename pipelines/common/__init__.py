"""What several steps share: files that are complete or absent, progress, and pages of a report."""

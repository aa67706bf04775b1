"""What several steps share: files, the console with its progress, pages and printed commands."""

"""Each claim about speed, as a ratio to a rival measured in the same run."""

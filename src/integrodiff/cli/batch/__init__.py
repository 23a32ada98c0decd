"""Many image files in one run: planned before it starts, resumable, one failure at a time."""

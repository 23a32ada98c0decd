"""Pictures and measures of quality: compare, explain, demo."""

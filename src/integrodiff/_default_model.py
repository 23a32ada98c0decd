"""The one place that says which model denoises if none is named."""

DEFAULT_MODEL = "iad-plus"

"""A look at a feature view: values at once, and which events count in which tile and window."""

from paimon_features.project.preview.preview import Preview, preview_events
from paimon_features.project.preview.preview_data import PreviewEvent, PreviewWindow
from paimon_features.project.preview.timeline import Picture

__all__ = ["Picture", "Preview", "PreviewEvent", "PreviewWindow", "preview_events"]

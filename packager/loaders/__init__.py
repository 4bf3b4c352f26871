"""Opens trained models: by content, never by file extension."""

"""Coverage-guided fuzzing of what reads other people's bytes: see __main__.py."""

"""Serves packager bundles: the SavedModel engine and, around it, the web application.

This package never imports `packager`; it knows a bundle by its manifest alone.
"""

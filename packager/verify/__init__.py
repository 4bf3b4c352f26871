"""Verification: runs the shipped programs on the artifacts, compares and gates."""

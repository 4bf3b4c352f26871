"""The Edge TPU: predicts what its compiler maps, and runs the compiler where it is installed."""

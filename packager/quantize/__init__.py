"""Post-training quantization: recipes, and the child process that applies them."""

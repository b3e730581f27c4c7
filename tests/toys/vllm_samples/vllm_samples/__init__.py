"""One of each of what packages for vLLM are commonly made of; they import that alone."""

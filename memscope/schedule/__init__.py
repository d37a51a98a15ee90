"""The order in which XLA runs a program's instructions, chosen for the lowest peak, and where buffers lie."""

"""`flow dev`: a node to work on, with VS Code, Jupyter or a shell."""

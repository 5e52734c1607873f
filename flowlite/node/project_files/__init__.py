"""The working directory of a task on its node, made from the project that travels with it."""

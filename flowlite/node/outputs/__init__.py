"""`outputs=`: which files of the working directory are to be brought back, and what else a task wrote there."""

"""Why a gang hangs or failed: stacks grouped, nodes compared, failures that are known, each with advice. Pure."""

"""Children: programs that extensions start through the SDK, with limits, stopped with everything they started."""

"""Who operates, what they may see, and the audit of what they did."""

"""For host authors: a reference host, a fake chat provider and a webhook receiver."""
